// A key's value that proxies hold in their caches is asked back: who wants to write it waits until none has it any more.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "rdzv/waiter.hpp"

namespace rdzv {

// As long as somebody keeps it, nobody is given the key's value to hold. Thread-safe.
class Recall {
 public:
  // One more holder has been asked.
  void ask() {
    const std::lock_guard lock(mutex_);
    ++asked_;
  }
  // One has given it up: who waits for the last of them is passed on.
  void given_up(Wakes& wakes) {
    const std::lock_guard lock(mutex_);
    if (--asked_ > 0) {
      return;
    }
    for (auto& writer : writers_) {
      if (writer->missing.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        wakes.push_back(std::move(writer));
      }
    }
    writers_.clear();
  }
  bool over() {
    const std::lock_guard lock(mutex_);
    return asked_ == 0;
  }
  // False: it is over.
  bool join(const std::shared_ptr<Waiter>& writer) {
    const std::lock_guard lock(mutex_);
    if (asked_ == 0) {
      return false;
    }
    writer->missing.fetch_add(1, std::memory_order_relaxed);
    writers_.push_back(writer);
    return true;
  }

 private:
  std::mutex mutex_;
  std::size_t asked_ = 0;
  Wakes writers_;
};

}  // namespace rdzv
