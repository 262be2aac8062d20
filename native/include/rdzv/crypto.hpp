// What is asked of libcrypto (OpenSSL): HMAC with SHA-256, and a comparison whose time says nothing. It is loaded when the
// first token is given, and never linked: the one that Python's own hashlib has is the one that the system keeps up to date.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace rdzv {

inline constexpr std::size_t kDigestSize = 32;
using Digest = std::array<char, kDigestSize>;

inline std::string_view view(const Digest& digest) { return {digest.data(), digest.size()}; }

// Once before what follows is called; again does nothing. `library` is linked with libcrypto: the file of Python's
// _hashlib; empty, or without the functions: libcrypto itself is looked for. Thread-safe. Throws std::runtime_error.
void load_crypto(const std::string& library);

// Nothing: libcrypto has refused, or was not loaded.
std::optional<Digest> hmac_sha256(std::string_view key, std::string_view message);
// In a time that depends on their sizes alone.
bool same_secret(std::string_view one, std::string_view other);
// From the kernel. Nothing: it has none to give.
std::optional<Digest> fresh_nonce();

}  // namespace rdzv
