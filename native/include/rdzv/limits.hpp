// What one client may ask of the server. Sizes in bytes, times in milliseconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rdzv {

struct Limits {
  // The first three are those of torch's libuv server.
  std::uint64_t key_bytes = 8192;
  std::uint64_t value_bytes = 8u << 20;
  std::uint64_t keys_per_request = 131072;
  // One whole request, however many keys and values it has.
  std::uint64_t request_bytes = 256u << 20;
  // Replies that one client has not read yet.
  std::uint64_t output_bytes = 256u << 20;
  // Half-sent requests and unread replies of all clients together.
  std::uint64_t buffered_bytes = 1u << 30;
  // Keys and values of one keyspace, with what it costs to know them; and those of all runs together. 0: as many as may
  // be.
  std::uint64_t stored_bytes = 0;
  // Keys of one keyspace, those that are only waited for included. 0: as many as may be.
  std::uint64_t stored_keys = 0;
  // Of one run: what is listed and watched there is so in one go.
  std::uint64_t run_bytes = 64u << 20;
  std::uint64_t run_keys = 1u << 18;
  // Of the server, and of one run.
  std::uint32_t sessions = 1u << 18;
  std::uint32_t run_sessions = 1u << 16;
  // Of one session, and of one run.
  std::uint32_t watches = 1024;
  std::uint32_t run_watches = 1u << 18;
  // Open connections. 0: what the limit of open files leaves.
  std::uint32_t connections = 0;
  // Those of them that have not sent a valid first request: of all addresses, at most half of `connections`; of one.
  std::uint32_t pending_connections = 1u << 16;
  std::uint32_t pending_per_address = 1u << 14;
  // Bytes and time to send a valid first request.
  std::uint64_t handshake_bytes = 64u << 10;
  std::uint32_t handshake_ms = 30'000;
  // A half-sent request or an unread reply may stand still for this long.
  std::uint32_t stall_ms = 60'000;
};

// Why a connection is closed by the server. The texts are names in the statistics and in the log.
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
  kNoTls,
  kTlsOffered,
  kBadTls,
  kNoCertificate,
  kCertificateExpired,
  kCertificateEarly,
  kOtherAuthority,
  kBadCertificate,
  kRefusedCertificate,
  kKeepsValue,
  kStoreFull,
  kNoToken,
  kWrongToken,
  kTokenOffered,
  kTooManyPending,
  kHandshakeTooLong,
  kTooManyStoredKeys,
  kRunFull,
  kTooManySessions,
  kTooManyWatches,
};

inline constexpr std::array<std::string_view, 42> kRefusals{
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
    "no TLS",
    "TLS offered",
    "no TLS 1.3, or changed on the way",
    "no certificate",
    "certificate expired",
    "certificate not yet valid",
    "certificate of another authority",
    "certificate not accepted",
    "does not accept this side's certificate",
    "keeps a recalled value",
    "store full",
    "no token",
    "wrong token",
    "token offered",
    "too many pending connections",
    "handshake too long",
    "too many stored keys",
    "run full",
    "too many sessions",
    "too many watches",
};

constexpr std::string_view text(Refusal refusal) { return kRefusals[static_cast<std::size_t>(refusal)]; }

// What whoever reads the log can do about it; empty for most.
constexpr std::string_view advice(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNoToken:
      return ", which is needed here: if it was a node of this job, it has to be given the same RDZV_TOKEN or token_file";
    case Refusal::kWrongToken:
      return ": if it was a node of this job, its token or its run id is another one than here";
    case Refusal::kTokenOffered:
      return ", and none is known here: give this side the token, too, or that one none";
    case Refusal::kTooManyPending:
      return ", which say nothing: it was the oldest of them; pending_connections and pending_per_address limit them";
    case Refusal::kTooManyStoredKeys:
      return ", as stored_keys limits them";
    case Refusal::kNoTls:
      return ", which is needed here: if it was a node of this job, it has to be given cacert, cert and key";
    case Refusal::kTlsOffered:
      return ", and there is none here: give this side cacert, cert and key, too, or that one none";
    case Refusal::kNoCertificate:
      return ", which is needed here: if it was a node of this job, it has to be given cert and key";
    case Refusal::kCertificateExpired:
      return ": renew that side's, or set this machine's clock";
    case Refusal::kCertificateEarly:
      return ": the clock of this machine or of that which has made it is wrong";
    case Refusal::kOtherAuthority:
      return ": if it was a node of this job, its certificate has to be signed by one of this side's cacert";
    case Refusal::kRefusedCertificate:
      return ": expired, for another host than it has dialled, or of an authority that is not in its cacert; its own "
             "output says which";
    default:
      return "";
  }
}
// Of strangers, wherever it is: they are not to fill the log.
constexpr bool is_of_stranger(Refusal refusal) {
  return refusal == Refusal::kNoToken || refusal == Refusal::kWrongToken || refusal == Refusal::kTokenOffered ||
         refusal == Refusal::kTooManyPending ||
         (refusal >= Refusal::kNoTls && refusal <= Refusal::kRefusedCertificate);
}

}  // namespace rdzv
