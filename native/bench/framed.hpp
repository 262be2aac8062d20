// A connection that speaks our own framing (PROTOCOL.md), as a client has it. Not thread-safe.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "place.hpp"
#include "rdzv/framing.hpp"
#include "socket.hpp"

namespace rdzv::load {

class Framed {
 public:
  // What the server has said: the id, the status and the payload of a frame.
  using Sink = std::function<void(std::uint32_t, FrameStatus, std::string_view)>;

  // Starts the connection, which greets when it is there; what is sent before goes right behind. Both throw LoadError.
  void connect(const Place& server, const std::optional<in_addr>& source);
  // Whatever epoll says. Throws ConnectionLost, and LoadError for what is no answer.
  void on_ready(std::uint32_t events, const Sink& sink);
  void send(std::uint32_t id, Operation operation, std::string_view payload);
  void close() noexcept { socket_.close(); }

  int fd() const { return socket_.fd(); }
  // The server has greeted, too.
  bool greeted() const { return greeted_; }
  // When something was sent last; of the monotonic clock.
  std::uint64_t sent_ns() const { return sent_ns_; }

 private:
  void take(std::string_view bytes, const Sink& sink);
  // The bytes of the first whole answer at the beginning; 0: there is none yet.
  std::size_t whole(std::string_view bytes) const;

  Socket socket_;
  std::string opening_;  // to be sent once the connection is there
  std::string partial_;  // the beginning of an answer
  bool connecting_ = false, greeted_ = false;
  std::uint64_t sent_ns_ = 0;
};

}  // namespace rdzv::load
