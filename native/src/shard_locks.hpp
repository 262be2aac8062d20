// The locks of several shards, taken in ascending order: two threads that need the same ones never wait for each other
// in a circle.
#pragma once

#include <bit>
#include <cstdint>

#include "rdzv/keyspace.hpp"

namespace rdzv {

class Keyspace::Locks {
 public:
  explicit Locks(Keyspace& keyspace) : keyspace_(keyspace), mask_((std::uint64_t{1} << kShards) - 1) { lock(); }
  Locks(Keyspace& keyspace, Keys keys) : keyspace_(keyspace) {
    for (const KeyView& key : keys) {
      mask_ |= std::uint64_t{1} << index(key);
    }
    lock();
    if (keys.size() > 1) {
      for (const KeyView& key : keys) {
        keyspace.shard_of(key).table.prefetch(key);
      }
    }
  }
  Locks(Keyspace& keyspace, Pairs pairs) : keyspace_(keyspace) {
    for (const Pair& pair : pairs) {
      mask_ |= std::uint64_t{1} << index(pair.key);
    }
    lock();
  }
  Locks(const Locks&) = delete;
  Locks& operator=(const Locks&) = delete;
  ~Locks() {
    each([](Shard& shard) { shard.mutex.unlock(); });
  }

 private:
  void lock() {
    each([](Shard& shard) { shard.mutex.lock(); });
  }
  template <class Action>
  void each(Action action) {
    for (std::uint64_t left = mask_; left != 0; left &= left - 1) {
      action(keyspace_.shards_[static_cast<std::size_t>(std::countr_zero(left))]);
    }
  }

  Keyspace& keyspace_;
  std::uint64_t mask_ = 0;
};

}  // namespace rdzv
