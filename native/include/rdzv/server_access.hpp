// What a connection may ask of the server that it belongs to, so that the protocol needs to know no server.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "rdzv/framing.hpp"
#include "rdzv/gate.hpp"
#include "rdzv/limits.hpp"
#include "rdzv/query.hpp"
#include "rdzv/run_space.hpp"
#include "rdzv/served_keyspace.hpp"

namespace rdzv {

// What one event loop has counted. Written by its thread alone, read by any.
class Count {
 public:
  // By the one writer only: no read-modify-write that other cores would have to wait for.
  void add(std::uint64_t more) { value_.store(value_.load(std::memory_order_relaxed) + more, std::memory_order_relaxed); }
  void set(std::uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct Counters {
  std::array<Count, kQueryCount> requests;
  Count frames;
  std::array<Count, kCoordination.size()> coordination;
  std::array<Count, kTrunkNames.size()> trunk;
  Count pushes, events;  // frames that were pushed, and the changes in them
  std::array<Count, kRefusals.size()> refused;
  Count accepted, closed;
  Count received, sent;  // bytes
  Count turns, busy_ns, wakes;
  Count stalled_ms;  // for which it did not run though it would have
};

class ServerAccess {
 public:
  virtual ~ServerAccess() = default;
  // The statistics as JSON. Thread-safe.
  virtual std::string statistics() = 0;
  // The open keyspace of that name, or null. Thread-safe.
  virtual std::shared_ptr<ServedKeyspace> keyspace(std::string_view name) = 0;
  // The runs that sessions live in. Thread-safe.
  virtual Spaces& spaces() = 0;
  // Those that are accepted now. Thread-safe.
  virtual std::shared_ptr<const Tokens> tokens() = 0;
};

class Relay;

// The same for all connections of an event loop.
struct LoopContext {
  const Limits& limits;
  Counters& counters;
  ServerAccess& server;
  std::uint32_t loop = 0;
  std::int64_t now_ms = 0;  // of the monotonic clock, once a turn
  Pushes pushes{};          // to be told at the end of the turn, or before the replies of whoever made the changes
  Wakes wakes{};            // the same, left by those who have gone
  std::uint64_t turn = 0;   // counts the turns of the loop
  Relay* relay = nullptr;   // of a proxy: where the keys really are
  std::int64_t stalled_ms = 0;  // for how long the loop has stood still, all in all

  // The time in which the loop has been running, by which the silence of others is judged: what they have said while it
  // stood still could not be heard, and what they have not may be on its way.
  std::int64_t running_ms() const { return now_ms - stalled_ms; }
};

}  // namespace rdzv
