// The proxy of a node, as light as its trunk: it asks its root what it would ask for its workers. Not thread-safe.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "framed.hpp"
#include "place.hpp"

namespace rdzv::load {

// Speaks PROTOCOL.md, "The trunk of a proxy". It follows and holds nothing, so nothing is recalled from it. What is wrong
// is thrown as LoadError, the end of the trunk as ConnectionLost: it is not made again.
class Proxy {
 public:
  // Dials the root, greets and attaches under `name`; `waiting()` until the root has taken it.
  void connect(const Place& root, const std::optional<in_addr>& source, std::string_view name);
  // One request at a time. An ADD that is forwarded: the sum of what the workers add.
  void add(std::string_view key, std::int64_t delta);
  // So many of the workers have arrived at torch's own barrier.
  void arrive(std::string_view key, std::int64_t world, std::int64_t count);
  // Whatever epoll says; true when the answer has come.
  bool on_ready(std::uint32_t events);
  // A sign of life, if it is time for one.
  void keep_alive();
  void close() noexcept { trunk_.close(); }

  int fd() const { return trunk_.fd(); }
  bool attached() const { return attached_; }
  bool waiting() const { return !awaited_.empty(); }
  std::string_view awaited() const { return awaited_; }  // the request whose answer is under way
  std::uint64_t asked_ns() const { return asked_ns_; }
  // What the last ADD has come to.
  std::int64_t number() const { return number_; }

 private:
  void ask(std::string_view name, Operation operation, std::string_view payload);
  void take(std::uint32_t id, FrameStatus status, std::string_view payload);
  void take_answer(std::string_view payload);
  void take_received(std::string_view payload);
  [[noreturn]] void wrong(std::string_view what) const;

  Framed trunk_;
  bool attached_ = false;
  std::string_view awaited_;
  std::uint32_t last_id_ = 0;
  std::uint64_t sent_ = 0, received_ = 0;  // counted frames
  std::uint64_t asked_ns_ = 0, beat_ns_ = 0;
  std::int64_t number_ = 0;
};

}  // namespace rdzv::load
