// One end of a connection that does not block, and what has not been sent yet. Not thread-safe.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "place.hpp"

namespace rdzv::load {

class Socket {
 public:
  Socket() = default;
  Socket(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  Socket& operator=(Socket&&) = delete;
  ~Socket() { close(); }

  // Makes the socket. Throws LoadError.
  void open(sa_family_t family, const std::optional<in_addr>& source);
  // Starts a connection. Throws ConnectionLost.
  void connect(const Place& server);
  // Throws ConnectionLost if the connection under way has failed.
  void established() const;
  // With a reset, so that no port is left in TIME_WAIT. What was not sent is forgotten.
  void close() noexcept;

  // Sends what can be sent now, and keeps the rest. Throws ConnectionLost, as all below.
  void send(std::string_view bytes);
  // After the socket has become writable.
  void flush();
  // Reads what is there, after epoll's `events`, and hands it on. `sink` may close the socket, which ends that.
  void read(std::uint32_t events, const std::function<void(std::string_view)>& sink);

  int fd() const { return fd_; }

 private:
  int fd_ = -1;
  std::string unsent_;
};

}  // namespace rdzv::load
