// The guard of a keyspace against its own process standing still: others may have given its clients up meanwhile, so
// nobody is served until somebody who knows has said that it may go on. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "rdzv/unique_fd.hpp"

namespace rdzv {

class Pause {
 public:
  // From now on: when the process has not turned for that long. Returns a descriptor, the caller's own: an eventfd that
  // is written to at each pause, and at the end. Throws std::system_error; std::invalid_argument at the second call.
  int after(std::int64_t ms);

  // A loop turns, or is about to serve somebody. True: nobody of this keyspace is to be served.
  bool check() {
    if (after_ms_.load(std::memory_order_acquire) == 0) {
      return false;
    }
    return check_armed();
  }
  bool paused() const { return paused_.load(std::memory_order_acquire); }
  // How often at least a loop has to turn, in milliseconds; 0: it need not.
  std::int64_t tick_ms() const { return after_ms_.load(std::memory_order_relaxed) / 4; }

  // How many pauses there have been. Each one that falls into another counts.
  std::uint64_t number();
  // Ends the pause of that number. False: the process has stood still again since, or it does not pause.
  bool resume(std::uint64_t number);
  // The keyspace closes: whoever waits for a pause is to hear of it.
  void end();

 private:
  bool check_armed();
  void stood_still(std::int64_t now_ms);
  void signal();

  std::atomic<std::int64_t> after_ms_{0};  // 0: never
  std::atomic<std::int64_t> turned_ms_{0}; // when any loop last has
  std::atomic<bool> paused_{false};        // set before `turned_ms_`: who finds that fresh sees this
  std::mutex mutex_;                       // guards what follows, and changes of the above save that a loop turns
  std::uint64_t number_ = 0;
  UniqueFd event_;
};

}  // namespace rdzv
