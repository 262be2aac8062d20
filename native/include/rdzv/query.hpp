// The requests of torch's TCPStore wire format, and how each is laid out. See PROTOCOL.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "rdzv/limits.hpp"

namespace rdzv {

// The value on the wire; the order is torch's (QueryType in TCPStoreBackend.hpp, torch 2.13).
enum class Query : std::uint8_t {
  kValidate,
  kSet,
  kCompareSet,
  kGet,
  kAdd,
  kCheck,
  kWait,
  kGetNumKeys,
  kDeleteKey,
  kAppend,
  kMultiGet,
  kMultiSet,
  kCancelWait,
  kPing,
  kQueuePush,
  kQueuePop,
  kQueueLen,
  kListKeys,
  kBarrier,
};

inline constexpr std::size_t kQueryCount = 19;
inline constexpr std::uint32_t kValidateMagic = 0x3C85F7CE;

// Answers of one byte.
inline constexpr char kReady = 0, kNotReady = 1;
inline constexpr char kStopWaiting = 0, kWaitCanceled = 1;

struct QueryInfo {
  std::string_view name;
  // The fields after the type byte: 'k' a key, 'v' a value (both: u64 length, bytes), '4' and '8' that many bytes,
  // 'n' a u64 count, after which the rest of the layout comes that many times.
  std::string_view layout;
};

inline constexpr std::array<QueryInfo, kQueryCount> kQueries{{
    {"validate", "4"},
    {"set", "kv"},
    {"compare_set", "kvv"},
    {"get", "k"},
    {"add", "k8"},
    {"check", "nk"},
    {"wait", "nk"},
    {"num_keys", ""},
    {"delete_key", "k"},
    {"append", "kv"},
    {"multi_get", "nk"},
    {"multi_set", "nkv"},
    {"cancel_wait", ""},
    {"ping", "4"},
    {"queue_push", "kv"},
    {"queue_pop", "k"},
    {"queue_len", "k"},
    {"list_keys", ""},
    {"barrier", "k8"},
}};

// Whether its answer depends on what others have written. The other requests have no answer, or wait for something.
constexpr bool asks(Query query) {
  switch (query) {
    case Query::kCompareSet:
    case Query::kGet:
    case Query::kAdd:
    case Query::kCheck:
    case Query::kGetNumKeys:
    case Query::kDeleteKey:
    case Query::kMultiGet:
    case Query::kQueuePop:
    case Query::kQueueLen:
    case Query::kListKeys:
      return true;
    default:
      return false;
  }
}

constexpr const QueryInfo& info(Query query) { return kQueries[static_cast<std::size_t>(query)]; }

// Finds where a request ends, however its bytes arrive. Looks at each byte once, allocates nothing, knows no sockets.
class Scanner {
 public:
  enum class Result : std::uint8_t { kIncomplete, kComplete, kRefused };

  // `bytes` begins with the request's first byte and holds what has arrived of it so far, or more. Call again with
  // more bytes after kIncomplete: scanning goes on where it stopped. A length is checked as soon as it is there.
  Result advance(std::string_view bytes, const Limits& limits);

  // After kComplete: the bytes of the request, its type byte included.
  std::size_t size() const { return static_cast<std::size_t>(end_); }
  // After kRefused.
  Refusal refusal() const { return refusal_; }
  // The next call begins a new request.
  void reset() { *this = Scanner(); }

 private:
  Result refuse(Refusal why);
  // Reads the length or count that begins the current field. False: refused.
  bool measure(char field, std::uint64_t number, const Limits& limits);
  void next_field(std::string_view layout);

  std::uint64_t end_ = 0;    // of what is known of the request; may lie beyond the bytes that are there
  std::uint64_t groups_ = 0; // how often the layout from group_ on is still to come, this time included
  std::uint8_t field_ = 0;   // index into the layout
  std::uint8_t group_ = 0;   // where a repeated part begins; 0: nothing is repeated
  Refusal refusal_ = Refusal::kNone;
};

}  // namespace rdzv
