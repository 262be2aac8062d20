// What a keyspace knows of one key: its value, its queue, who waits for it. In one allocation with the key's text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "rdzv/hash.hpp"
#include "rdzv/value.hpp"
#include "rdzv/waiter.hpp"

namespace rdzv {

// A key of a request and its hash, which is computed once and picks the shard too.
struct KeyView {
  KeyView() = default;
  explicit KeyView(std::string_view key) : text(key), hash(KeyHasher::hash(key)) {}
  std::string_view text;
  std::uint64_t hash = 0;
};

class Holder;
class Recall;

// What few keys have.
struct Extras {
  std::deque<std::string> queue;
  bool told = false;  // proxies that wait for it know that it is a queue
  WaitList barrier;
  std::int64_t lowest_threshold = 0;  // of those in the barrier's list, or lower
};

// Who has the value in its cache.
struct Holders {
  struct Place {
    std::weak_ptr<Holder> holder;
    std::uint32_t epoch = 0;
  };
  std::vector<Place> list;
  std::weak_ptr<Recall> recall;  // nobody is added while there is one
};

struct Entry {
  struct Delete {
    void operator()(Entry* entry) const {
      entry->~Entry();
      ::operator delete(entry);
    }
  };
  using Owner = std::unique_ptr<Entry, Delete>;

  static Owner make(const KeyView& key) {
    void* const memory = ::operator new(sizeof(Entry) + key.text.size());
    std::memcpy(static_cast<char*>(memory) + sizeof(Entry), key.text.data(), key.text.size());
    return Owner(new (memory) Entry(key));
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  std::string_view key() const { return {reinterpret_cast<const char*>(this) + sizeof(Entry), key_size}; }
  bool has_queue() const { return extras && !extras->queue.empty(); }
  bool present() const { return has_value || has_queue(); }
  bool waited_for() const { return !waiters.empty() || (extras && !extras->barrier.empty()); }
  bool needed() const { return present() || waited_for(); }
  Extras& more() {
    if (!extras) {
      extras = std::make_unique<Extras>();
    }
    return *extras;
  }

  const std::uint64_t hash;
  const std::uint32_t key_size;
  bool has_value = false;
  bool changes = false;  // has been added to, compared, appended to, queued: not worth keeping in a cache
  std::uint32_t waited_index = 0;  // in the shard's list of keys that are waited for, from 1; 0: not there
  Value value;
  WaitList waiters;
  std::unique_ptr<Extras> extras;
  std::unique_ptr<Holders> holders;

 private:
  explicit Entry(const KeyView& key) : hash(key.hash), key_size(static_cast<std::uint32_t>(key.text.size())) {}
  ~Entry() = default;
};

}  // namespace rdzv
