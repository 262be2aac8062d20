// How either side proves that it knows a token of the job: what is said, and what the proofs are made of. See PROTOCOL.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rdzv/crypto.hpp"

namespace rdzv {

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
