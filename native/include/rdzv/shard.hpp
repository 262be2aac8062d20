// A part of a keyspace: keys with their lock. Internal to the keyspace.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "rdzv/key_table.hpp"

namespace rdzv {

struct alignas(64) Shard {
  std::mutex mutex;
  KeyTable table;
  std::size_t keys = 0;    // entries with a value
  std::size_t queues = 0;  // entries with a queue that is not empty
  std::size_t queued = 0;  // values in them
  std::size_t bytes = 0;   // of keys and values that are stored
  std::size_t key_bytes = 0;  // of these keys
  std::vector<Entry*> waited;  // keys that somebody waits for, so that statistics need not look at all of them

  std::uint64_t wiped = 0;     // how many times all was forgotten
  // Of all shards: what is stored, and what it costs to know the keys. Told in steps, so that not every write meets there.
  std::atomic<std::uint64_t>* stored = nullptr;
  std::atomic<std::uint64_t>* entries = nullptr;
  std::uint64_t told = 0, told_entries = 0;

  // To be called after `bytes` or the table has changed. Keys that are only waited for count as those with a value.
  void note_size() {
    constexpr std::uint64_t kStep = 64 << 10, kEntryStep = 64, kEntry = sizeof(Entry) + 48;  // its slots, the allocator
    tell(*entries, told_entries, table.size(), kEntryStep);
    tell(*stored, told, bytes - key_bytes + table.text_bytes() + table.size() * kEntry, kStep);
  }

  // To be called after an entry's lists have changed.
  void note_waited(Entry& entry) {
    if (entry.waited_for() == (entry.waited_index > 0)) {
      return;
    }
    if (entry.waited_index == 0) {
      waited.push_back(&entry);
      entry.waited_index = static_cast<std::uint32_t>(waited.size());
    } else {
      waited[entry.waited_index - 1] = waited.back();
      waited.back()->waited_index = entry.waited_index;
      waited.pop_back();
      entry.waited_index = 0;
    }
  }

 private:
  static void tell(std::atomic<std::uint64_t>& all, std::uint64_t& last, std::uint64_t now, std::uint64_t step) {
    if (now > last + step || now + step < last || (now == 0 && last > 0)) {
      all.fetch_add(now - last, std::memory_order_relaxed);  // modulo 2^64, down as well as up
      last = now;
    }
  }
};

}  // namespace rdzv
