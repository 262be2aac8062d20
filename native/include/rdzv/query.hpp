// The requests of torch's TCPStore wire format, and how each is laid out. See PROTOCOL.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

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

}  // namespace rdzv
