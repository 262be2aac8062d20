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
#include "socket.hpp"

namespace rdzv::load {

class Client {
 public:
  // As those of the socket.
  void open(sa_family_t family, const std::optional<in_addr>& source) { socket_.open(family, source); }
  void connect(const Place& server) { socket_.connect(server); }
  void established() const { socket_.established(); }
  void close() noexcept { socket_.close(); }

  // Sends what can be sent now. One request that brings a reply may be under way at a time.
  void send(const Exchange& exchange);
  // After the socket has become writable.
  void flush() { socket_.flush(); }
  // Reads what is there, after epoll's `events`; true when the reply has become complete.
  // Throws ConnectionLost, or LoadError at the first wrong byte.
  bool receive(std::uint32_t events);

  int fd() const { return socket_.fd(); }
  bool waiting() const { return received_ < reply_.size(); }
  std::string_view awaited() const { return name_; }  // the request whose reply is under way
  bool timed() const { return timed_; }
  std::uint64_t sent_ns() const { return sent_ns_; }
  // The last reply, if it was a number.
  std::optional<std::int64_t> number() const { return reply_.number ? std::optional(number_) : std::nullopt; }

 private:
  void take(std::string_view part);

  Socket socket_;
  bool timed_ = false;
  Reply reply_;
  std::size_t received_ = 0;
  std::int64_t number_ = 0;
  std::uint64_t sent_ns_ = 0;
  std::string_view name_;
};

}  // namespace rdzv::load
