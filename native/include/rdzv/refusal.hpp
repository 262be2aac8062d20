// Why a connection is closed by the server. The texts are names in the statistics and in the log.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rdzv {

enum class Refusal : std::uint8_t {
  kNone,
  kNotAClient,
  kNoHandshake,
  kUnknownRequest,
  kKeyTooLong,
  kValueTooLong,
  kTooManyKeys,
  kRequestTooLong,
  kNotANumber,
  kHalfSent,
  kDoesNotRead,
  kUnreadReplies,
  kBuffersFull,
  kTooManyWaits,
  kTooManyConnections,
  kNoDescriptors,
  kBadFrame,
  kOutOfMemory,
  kSessionExpired,
  kTrunkSilent,
  kForeignUser,
  kRootLost,
  kKeepsValue,
  kStoreFull,
};

inline constexpr std::array<std::string_view, 24> kRefusals{
    "none",
    "not a store client",
    "no handshake",
    "unknown request",
    "key too long",
    "value too long",
    "too many keys",
    "request too long",
    "not a number",
    "half-sent request",
    "does not read",
    "unread replies",
    "buffers full",
    "too many waits",
    "too many connections",
    "out of file descriptors",
    "bad frame",
    "out of memory",
    "session expired",
    "trunk silent",
    "foreign user",
    "root lost",
    "keeps a recalled value",
    "store full",
};

constexpr std::string_view text(Refusal refusal) { return kRefusals[static_cast<std::size_t>(refusal)]; }

}  // namespace rdzv
