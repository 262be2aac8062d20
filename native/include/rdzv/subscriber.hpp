// Where the changes of a run are left for one connection, by any thread. Knows no sockets.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "rdzv/output.hpp"

namespace rdzv {

// One key that was written, or is gone.
struct Event {
  bool gone = false;
  std::uint64_t revision = 0;
  std::string_view key, value;
};

class Subscriber {
 public:
  // Events beyond this size begin another frame.
  static constexpr std::size_t kFrameBytes = 1 << 20;

  // `most`: bytes that may wait here; whoever gets more has no connection for long.
  Subscriber(std::uint32_t of_loop, void* of_owner, std::size_t most) : loop(of_loop), owner(of_owner), most_(most) {}

  // True: its loop is to be told; false: it was told already, and has not come for it yet.
  bool push(std::uint32_t watch, const Event& event);

  struct Taken {
    std::uint64_t frames = 0, events = 0;
    bool overflown = false;  // events are missing
  };
  // Moves what is here to the end of `reply`. On the owner's loop.
  Taken take(Output& reply);

  const std::uint32_t loop;
  void* owner;  // touched by its loop only; null once the session has ended

 private:
  void append(std::uint32_t watch, const Event& event);

  const std::size_t most_;
  std::mutex mutex_;
  std::string frames_;      // complete ones; the last may still grow
  std::size_t last_ = 0;    // where that begins
  std::uint32_t watch_ = 0; // whose it is
  Taken waiting_;
  bool told_ = false;
};

// Those that were left something, and are to be told so after every lock is released.
using Pushes = std::vector<std::shared_ptr<Subscriber>>;

}  // namespace rdzv
