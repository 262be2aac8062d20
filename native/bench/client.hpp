// One connection of the load, the requests that it sends, and the replies that they must bring, checked byte by byte; for
// a store or for the bare echo. Not thread-safe.
#pragma once

#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "rdzv/query.hpp"

namespace rdzv::load {

// What a reply must be: `head`, then `body`. A number of any value where `number` is set (8 bytes).
struct Reply {
  std::array<char, 8> head{};
  std::size_t head_size = 0;
  std::string_view body;  // outlives the exchange
  bool number = false;

  std::size_t size() const { return head_size + body.size(); }
  std::string expected(std::size_t from, std::size_t count) const;
  // The first byte of `part`, which starts at `offset` of the reply, that is wrong; npos: none.
  std::size_t wrong(std::size_t offset, std::string_view part) const;
};

// A request under construction. One object serves for many requests, so that its memory is kept.
//
// For an echo, what is sent has the same size, but starts with two u32: its whole length and the length of the reply
// that it asks for, which then is all zero bytes. So the same workload moves the same bytes through either server.
class Exchange {
 public:
  explicit Exchange(bool echo) : echo_(echo) {}

  void connect(std::uint32_t nonce);  // VALIDATE and PING
  void set(std::string_view key, std::string_view value);
  void get(std::string_view key, std::string_view expected);
  void add(std::string_view key, std::int64_t delta);
  // `others`: whether the answer depends on what other clients do, which has no place among the latencies.
  void wait(std::string_view key, bool others);
  // torch's own barrier: the answer comes when `world` clients have asked.
  void barrier(std::string_view key, std::size_t world);
  // `keys` and `expected` are already laid out as on the wire (see `append_field`).
  void wait_many(std::size_t count, std::string_view keys, bool others = false);
  void multi_get(std::size_t count, std::string_view keys, std::string_view expected);

  std::string_view request() const { return request_; }
  const Reply& reply() const { return reply_; }
  std::string_view name() const { return name_; }
  std::uint64_t requests() const { return requests_; }
  bool timed() const { return timed_; }

 private:
  void start(Query query);
  // The reply begins with this number, or flag; then comes `body`.
  template <typename Number>
  void finish(Number head, std::string_view body = {});
  void finish();

  const bool echo_;
  std::string request_;
  Reply reply_;
  std::string_view name_;
  std::uint64_t requests_ = 1;
  bool timed_ = true;
};

// u64 length and bytes, as keys and values travel.
void append_field(std::string& to, std::string_view bytes);

// The largest reply that an echo gives.
inline constexpr std::size_t kEchoLimit = std::size_t{1} << 20;
// As many zero bytes, at most kEchoLimit.
std::string_view zeros(std::size_t count);

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
