// What one client may ask of the server. Sizes in bytes, times in milliseconds.
#pragma once

#include <cstdint>

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

}  // namespace rdzv
