#include "rdzv/proof.hpp"

#include <dlfcn.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <stdexcept>

#include "rdzv/framing.hpp"
#include "rdzv/payload.hpp"

namespace rdzv {

namespace {

// As openssl/hmac.h, evp.h and crypto.h declare them, from 1.1 on.
using Hmac = unsigned char* (*)(const void* type, const void* key, int key_size, const unsigned char* data,
                                std::size_t size, unsigned char* digest, unsigned* digest_size);
using Sha256 = const void* (*)();
using Compare = int (*)(const void* one, const void* other, std::size_t size);

struct Functions {
  Hmac hmac = nullptr;
  Sha256 sha256 = nullptr;
  Compare compare = nullptr;

  bool complete() const { return hmac != nullptr && sha256 != nullptr && compare != nullptr; }
};

Functions functions;  // written once, before any thread of ours reads it

template <class Function>
void find(void* library, const char* name, Function& found) {
  found = reinterpret_cast<Function>(dlsym(library, name));
}

bool take_from(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);  // kept for as long as the process lives
  if (library == nullptr) {
    return false;
  }
  Functions found;
  find(library, "HMAC", found.hmac);
  find(library, "EVP_sha256", found.sha256);
  find(library, "CRYPTO_memcmp", found.compare);
  if (!found.complete()) {
    dlclose(library);
    return false;
  }
  functions = found;
  return true;
}

}  // namespace

void load_crypto(const std::string& library) {
  static std::mutex once;
  const std::lock_guard lock(once);
  if (functions.complete() || (!library.empty() && take_from(library.c_str()))) {
    return;
  }
  for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"}) {
    if (take_from(name)) {
      return;
    }
  }
  throw std::runtime_error("OpenSSL's libcrypto (libcrypto.so.3) is not on this machine");
}

std::optional<Digest> hmac_sha256(std::string_view key, std::string_view message) {
  Digest digest;
  unsigned size = 0;
  if (!functions.complete() ||
      functions.hmac(functions.sha256(), key.data(), static_cast<int>(key.size()),
                     reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                     reinterpret_cast<unsigned char*>(digest.data()), &size) == nullptr ||
      size != digest.size()) {
    return std::nullopt;
  }
  return digest;
}

bool same_secret(std::string_view one, std::string_view other) {
  return functions.complete() && one.size() == other.size() &&
         functions.compare(one.data(), other.data(), one.size()) == 0;
}

std::optional<Digest> fresh_nonce() {
  Digest nonce;
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    return std::nullopt;
  }
  return nonce;
}

namespace {

constexpr std::string_view kWhat{"rdzv-plugins proof of a token"};
// Opcode, magic, version; purpose, nonce, size of the run's name.
constexpr std::size_t kFixed = 1 + 4 + 4, kHead = kFixed + 1 + kDigestSize + 2;

std::string beginning() {
  std::string bytes(1, static_cast<char>(kProofOpcode));
  bytes += kFramingMagic;
  add_number(bytes, kProofVersion);
  return bytes;
}

}  // namespace

std::string Introduction::bytes() const {
  std::string said = beginning();
  add_number(said, static_cast<std::uint8_t>(purpose));
  said += view(nonce);
  add_number(said, static_cast<std::uint16_t>(run.size()));
  return said + run;
}

Introduced read_introduction(std::string_view bytes, Introduction& introduction) {
  const std::string expected = beginning();
  const std::size_t magic = kFixed - sizeof kProofVersion;
  if (bytes.substr(0, magic) != std::string_view(expected).substr(0, std::min(magic, bytes.size()))) {
    return {0, Introduced::Error::kNotOne};
  }
  if (bytes.size() < kFixed) {
    return {};
  }
  if (bytes.substr(0, kFixed) != expected) {
    return {0, Introduced::Error::kOtherVersion};
  }
  if (bytes.size() < kHead) {
    return {};
  }
  const auto purpose = static_cast<std::uint8_t>(bytes[kFixed]);
  std::uint16_t size = 0;
  std::memcpy(&size, bytes.data() + kHead - sizeof size, sizeof size);
  if (!is_purpose(purpose) || size > kMostRunName) {
    return {0, Introduced::Error::kNotOne};
  }
  if (bytes.size() < kHead + size) {
    return {};
  }
  introduction.purpose = static_cast<Purpose>(purpose);
  std::memcpy(introduction.nonce.data(), bytes.data() + kFixed + 1, kDigestSize);
  introduction.run = bytes.substr(kHead, size);
  return {kHead + size, Introduced::Error::kNone};
}

std::optional<Digest> proof(std::string_view key, Side side, const Introduction& introduction, const Digest& server_nonce) {
  std::string message(kWhat);
  add_number(message, kProofVersion);
  add_number(message, static_cast<std::uint8_t>(side));
  add_number(message, static_cast<std::uint8_t>(introduction.purpose));
  message += view(introduction.nonce);
  message += view(server_nonce);
  add_text(message, introduction.run);
  return hmac_sha256(key, message);
}

std::optional<std::string> proofs(const std::vector<std::string>& keys, const Introduction& introduction,
                                  const Digest& server_nonce) {
  const std::size_t count = std::min(keys.size(), kMostProofs);
  std::string bytes(1, static_cast<char>(count));
  for (std::size_t i = 0; i < count; ++i) {
    const auto mine = proof(keys[i], Side::kClient, introduction, server_nonce);
    if (!mine) {
      return std::nullopt;
    }
    bytes += view(*mine);
  }
  return bytes;
}

std::optional<Verdict> verdict(std::string_view bytes) {
  std::uint32_t number = 0;
  if (!bytes.starts_with(kProofMagic)) {
    return std::nullopt;
  }
  std::memcpy(&number, bytes.data() + kProofMagic.size(), sizeof number);
  return static_cast<Verdict>(number);
}

std::string verdict_bytes(Verdict verdict) {
  std::string bytes(kProofMagic);
  add_number(bytes, static_cast<std::uint32_t>(verdict));
  return bytes;
}

}  // namespace rdzv
