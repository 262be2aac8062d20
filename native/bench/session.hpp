// A coordination session as a client has it (PROTOCOL.md, "Our own framing"). One request at a time. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "framed.hpp"
#include "place.hpp"
#include "rdzv/framing.hpp"

namespace rdzv::load {

class Session {
 public:
  // What comes of the server: a reply, to the request that is under way, or an event of a key that is watched.
  struct Listener {
    virtual ~Listener() = default;
    virtual void on_reply(std::string_view payload) = 0;
    virtual void on_event(std::string_view key, std::string_view value, bool gone) = 0;
    // All events of a push were told.
    virtual void on_told() = 0;
  };
  using Counts = std::array<std::uint32_t, kCoordination.size()>;

  Session() = default;
  Session(Session&&) = default;

  // Starts the connection, which greets and opens the session when it is there. Both throw LoadError.
  void connect(const Place& server, const std::optional<in_addr>& source, std::uint32_t ttl_ms, std::string_view run);
  // Whatever epoll says. Throws ConnectionLost, and LoadError for what is no answer, or a refusal.
  void on_ready(std::uint32_t events, Listener& listener);

  void watch(std::uint32_t number, std::string_view prefix);
  // With `create` only if the key is not there.
  void put(std::string_view key, std::string_view value, bool ephemeral, bool create);
  // If nothing was sent for so long.
  void keep_alive(std::uint64_t after_ns);
  void close() noexcept { connection_.close(); }

  int fd() const { return connection_.fd(); }
  // A request is under way.
  bool asks() const { return asks_; }
  // How often what was asked, signs of life apart, as `kCoordination` names it.
  const Counts& counts() const { return counts_; }

 private:
  void ask(Operation operation, std::string_view payload);
  void take(std::uint32_t id, FrameStatus status, std::string_view payload, Listener& listener);

  Framed connection_;
  bool asks_ = false;
  std::uint32_t last_id_ = 0;
  Counts counts_{};
};

}  // namespace rdzv::load
