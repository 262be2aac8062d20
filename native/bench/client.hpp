// One connection of the load: sends requests, and checks each reply byte by byte. Not thread-safe.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "exchange.hpp"

namespace rdzv::load {

// Why a run of the load ended early: a wrong reply, a connection that was lost, or a system call that failed.
struct LoadError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One connection was refused, reset or closed.
struct ConnectionLost : LoadError {
  using LoadError::LoadError;
};

// The run did not end within its limit.
struct TimeLimit : LoadError {
  using LoadError::LoadError;
};

// The system call `what` has just failed. Throws LoadError.
[[noreturn]] void fail(const char* what);

inline std::uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// Where a client goes.
struct Place {
  sockaddr_storage address{};
  socklen_t size = 0;
};

// "127.0.0.1:29500", or "unix:@name" for an abstract Unix socket. Throws LoadError.
Place parse_place(const std::string& text);

class Client {
 public:
  Client() = default;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { close(); }

  // Makes the socket. Throws LoadError.
  void open(const Place& place);
  // Starts a connection. Throws ConnectionLost, as all below.
  void connect(const Place& place);
  // Whether the connection under way has failed.
  void established() const;
  // With a reset, so that no port is left in TIME_WAIT. What was not sent is forgotten.
  void close() noexcept;

  // Sends what can be sent now, and keeps the rest. One request that brings a reply may be under way at a time.
  void send(const Exchange& exchange);
  // After the socket has become writable.
  void flush();
  // Reads what is there, after epoll's `events`; true when the reply has become complete.
  // Throws ConnectionLost, or LoadError at the first wrong byte.
  bool receive(std::uint32_t events);

  int fd() const { return fd_; }
  bool waiting() const { return received_ < reply_.size(); }
  std::string_view awaited() const { return name_; }  // the request whose reply is under way
  bool timed() const { return timed_; }
  std::uint64_t sent_ns() const { return sent_ns_; }
  // The last reply, if it was a number.
  std::optional<std::int64_t> number() const { return reply_.number ? std::optional(number_) : std::nullopt; }

 private:
  void take(std::string_view part);

  int fd_ = -1;
  std::string unsent_;
  bool timed_ = false;
  Reply reply_;
  std::size_t received_ = 0;
  std::int64_t number_ = 0;
  std::uint64_t sent_ns_ = 0;
  std::string_view name_;
};

}  // namespace rdzv::load
