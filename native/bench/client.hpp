// One connection of the load: sends requests, and checks each reply byte by byte. Not thread-safe.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "exchange.hpp"
#include "place.hpp"

namespace rdzv::load {

class Client {
 public:
  Client() = default;
  Client(Client&& other) noexcept;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  Client& operator=(Client&&) = delete;
  ~Client() { close(); }

  // Makes the socket. Throws LoadError.
  void open(sa_family_t family, const std::optional<in_addr>& source);
  // Starts a connection that does not block. Throws ConnectionLost.
  void connect(const Place& server);
  // Throws ConnectionLost if the connection under way has failed.
  void established() const;
  // With a reset, so that no port is left in TIME_WAIT.
  void close() noexcept;

  // Sends what can be sent now. One request that brings a reply may be under way at a time.
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
  bool timed_ = false;
  Reply reply_;
  std::size_t received_ = 0;
  std::int64_t number_ = 0;
  std::uint64_t sent_ns_ = 0;
  std::string_view name_;
  std::string unsent_;
};

}  // namespace rdzv::load
