// Who holds values of a keyspace in a cache, and shares the waits of others: what the keyspace knows of a proxy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "rdzv/framing.hpp"
#include "rdzv/subscriber.hpp"
#include "rdzv/waiter.hpp"

namespace rdzv {

// A key's value that proxies hold in their caches is asked back: who wants to write it waits until none has it any more.

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

// Thread-safe. What is said to it is said under the lock of the key's shard, so that it hears of a value before it is
// asked to give that up: these take no lock of a keyspace.
class Holder {
 public:
  virtual ~Holder() = default;

  // A frame for it, after all that were pushed before.
  virtual void push(std::uint32_t id, FrameStatus status, std::string_view payload, Pushes& pushes) = 0;
  // The end of a follow: the value, if the connection still lives by which it was granted.
  virtual void push_value(std::uint32_t id, std::uint32_t granted, std::string_view value, Pushes& pushes) = 0;
  // Which of its connections it holds values by; 0: by none any more. A broken one counts until it knows.
  virtual std::uint32_t epoch() = 0;
  // The same, for another value: 0 while there is no connection.
  virtual std::uint32_t granting() = 0;
  // Asks for a key back. False: it is held by that connection no more.
  virtual bool ask_back(std::uint32_t epoch, std::string_view key, const std::shared_ptr<Recall>& recall,
                        Pushes& pushes) = 0;
  // A wait that it shares; and the end of that: null if there is none with that id.
  virtual void keep(const std::shared_ptr<Waiter>& waiter) = 0;
  virtual std::shared_ptr<Waiter> forget(std::uint32_t id) = 0;
  // Nobody is behind it: it replaces what it holds by what it writes, and need not be asked for that.
  virtual bool replaces_its_own() const = 0;
  virtual std::weak_ptr<Holder> weak() = 0;
};

}  // namespace rdzv
