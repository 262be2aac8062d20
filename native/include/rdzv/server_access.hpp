// What a connection may ask of the server that it belongs to, so that the protocol needs to know no server.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "rdzv/counters.hpp"
#include "rdzv/served_keyspace.hpp"
#include "rdzv/limits.hpp"
#include "rdzv/spaces.hpp"
#include "rdzv/gate.hpp"

namespace rdzv {

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
