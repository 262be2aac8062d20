// How either side proves that it knows a token of the job: what is said, and what the proofs are made of. See PROTOCOL.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rdzv {

// What is asked of libcrypto (OpenSSL): HMAC with SHA-256, and a comparison whose time says nothing. It is loaded when the
// first token is given, and never linked: the one that Python's own hashlib has is the one that the system keeps up to date.

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

inline constexpr unsigned char kProofOpcode = 0xF8;
inline constexpr std::string_view kProofMagic = "RDZA";
inline constexpr std::uint32_t kProofVersion = 1;
inline constexpr std::size_t kMostRunName = 1024, kMostProofs = 2;
// What the server says: magic and verdict, with a nonce or a proof behind them where it goes on.
inline constexpr std::size_t kVerdictSize = 8, kChallengeSize = kVerdictSize + kDigestSize,
                             kAcceptedSize = kVerdictSize + 1 + kDigestSize;

// What the connection is for.
enum class Purpose : std::uint8_t { kSession = 1, kTrunk = 2, kStore = 3, kStatus = 4 };
constexpr bool is_purpose(std::uint8_t number) { return number >= 1 && number <= 4; }

enum class Verdict : std::uint32_t {
  kGoOn = 0,
  kTokenNeeded = 1,
  kNoTokenHere = 2,
  kRefused = 3,
  kOtherVersion = 4,
  kNotOpened = 5,  // the token is known, but is for other runs, or for none of this
  kTlsNeeded = 6,  // said in plain: all else is under TLS
  kNoTlsHere = 7,  // in plain, to who has begun TLS
};

enum class Side : std::uint8_t { kClient = 1, kServer = 2 };

// What the client says first.
struct Introduction {
  Purpose purpose{};
  Digest nonce{};
  std::string run;

  // As it is sent.
  std::string bytes() const;
};

// Reads one: its size, 0 if more has to come, and why it is none. Every byte is judged when it comes.
struct Introduced {
  enum class Error : std::uint8_t { kNone, kNotOne, kOtherVersion };
  std::size_t size = 0;
  Error error = Error::kNone;
};
Introduced read_introduction(std::string_view bytes, Introduction& introduction);

// Of who knows `key`. The sides' proofs differ, so that none can be sent back to who has made it.
std::optional<Digest> proof(std::string_view key, Side side, const Introduction& introduction, const Digest& server_nonce);
// The client's answer to the challenge: one for each of its keys, at most kMostProofs.
std::optional<std::string> proofs(const std::vector<std::string>& keys, const Introduction& introduction,
                                  const Digest& server_nonce);
// The verdict at the beginning of at least kVerdictSize bytes; nothing if they are none.
std::optional<Verdict> verdict(std::string_view bytes);
std::string verdict_bytes(Verdict verdict);

}  // namespace rdzv
