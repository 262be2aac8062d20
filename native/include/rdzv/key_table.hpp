// Entries by key: open addressing with linear probing, a power of two of slots, at most three quarters of them taken.
// A look-up reads one slot and one entry, where std::unordered_map follows three pointers and divides. Entries do not
// move. One thread at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rdzv/hash.hpp"
#include "rdzv/output.hpp"
#include "rdzv/waiter.hpp"

namespace rdzv {

// A stored value: changed in place while it is private, shared with readers once it is large and read.

// The text of a value that replies refer to. Once the value has changed, only unread replies keep it: that is memory
// which clients who do not read make the server hold, so it is counted.
class SharedText {
 public:
  explicit SharedText(std::string&& text) : text_(std::move(text)) {}
  ~SharedText() {
    if (detached_) {
      detached_bytes_.fetch_sub(text_.size(), std::memory_order_relaxed);
    }
  }
  SharedText(const SharedText&) = delete;
  SharedText& operator=(const SharedText&) = delete;

  const std::string& text() const { return text_; }
  // Once, by the value, before it lets go.
  void detach() {
    detached_ = true;
    detached_bytes_.fetch_add(text_.size(), std::memory_order_relaxed);
  }
  // Of all servers of the process.
  static std::uint64_t detached_bytes() { return detached_bytes_.load(std::memory_order_relaxed); }

 private:
  static inline std::atomic<std::uint64_t> detached_bytes_{0};

  const std::string text_;
  bool detached_ = false;  // read by the last one to let go, which comes after
};

class Value {
 public:
  // From this size on a reply refers to the value instead of copying it. Below, a copy costs less than the second
  // part of a gathered send.
  static constexpr std::size_t kShareFrom = 16 * 1024;

  Value() = default;
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;
  ~Value() { let_go(); }

  std::string_view view() const { return shared_ ? std::string_view(shared_->text()) : std::string_view(text_); }

  void assign(std::string_view value) {
    let_go();
    text_.assign(value);
  }

  void append(std::string_view value) {
    if (shared_) {  // readers may still be sent it as it was
      text_.assign(shared_->text());
      let_go();
    }
    text_.append(value);
  }

  // Forgets the value and its memory.
  void clear() {
    let_go();
    std::string().swap(text_);
  }

  // The value, into a reply.
  void write(Output& reply) {
    if (!shared_ && text_.size() >= kShareFrom) {
      shared_ = std::make_shared<SharedText>(std::exchange(text_, {}));
    }
    if (shared_) {
      reply.bytes(Output::Shared(shared_, &shared_->text()));
    } else {
      reply.bytes(text_);
    }
  }

 private:
  void let_go() {
    if (shared_) {
      shared_->detach();
      shared_.reset();
    }
  }

  std::string text_;
  std::shared_ptr<SharedText> shared_;
};

// What a keyspace knows of one key: its value, its queue, who waits for it. In one allocation with the key's text.
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

class KeyTable {
 public:
  // Null: there is none.
  Entry* find(const KeyView& key) const {
    if (slots_.empty()) {
      return nullptr;
    }
    for (std::size_t at = home(key.hash); slots_[at].entry; at = next(at)) {
      if (slots_[at].hash == key.hash && slots_[at].entry->key() == key.text) {
        return slots_[at].entry.get();
      }
    }
    return nullptr;
  }

  // Begins to fetch what find() will read.
  void prefetch(const KeyView& key) const {
    if (!slots_.empty()) {
      __builtin_prefetch(&slots_[home(key.hash)]);
    }
  }

  // For a key that is not there.
  Entry& add(const KeyView& key) {
    if ((size_ + 1) * 4 > slots_.size() * 3) {
      grow();
    }
    Entry::Owner entry = Entry::make(key);
    Entry& added = *entry;
    place({key.hash, std::move(entry)});
    ++size_;
    text_bytes_ += key.text.size();
    return added;
  }

  void erase(const Entry& entry) {
    text_bytes_ -= entry.key_size;
    std::size_t hole = home(entry.hash);
    while (slots_[hole].entry.get() != &entry) {
      hole = next(hole);
    }
    slots_[hole].entry.reset();
    --size_;
    // Those behind move up, as far as their home allows: no marks of the dead, which look-ups would have to pass.
    for (std::size_t at = next(hole); slots_[at].entry; at = next(at)) {
      if (((at - home(slots_[at].hash)) & mask()) >= ((at - hole) & mask())) {
        slots_[hole] = std::move(slots_[at]);
        hole = at;
      }
    }
  }

  template <class Action>
  void each(Action action) const {
    for (const Slot& slot : slots_) {
      if (slot.entry) {
        action(*slot.entry);
      }
    }
  }

  // The entries of the next place, and which comes then; 0: all have been seen. Whoever begins with 0 and follows sees
  // each entry that stays there once, also if the table grows meanwhile: places are counted from the highest bit, so
  // that those into which a place is split follow each other.
  template <class Action>
  std::uint64_t scan(std::uint64_t place, Action action) const {
    if (slots_.empty()) {
      return 0;
    }
    const std::size_t first = static_cast<std::size_t>(place) & mask();
    for (std::size_t at = first; slots_[at].entry; at = next(at)) {
      if (home(slots_[at].hash) == first) {
        action(*slots_[at].entry);
      }
    }
    return reversed(reversed(place | ~std::uint64_t{mask()}) + 1);
  }

  std::size_t size() const { return size_; }
  // Of all keys.
  std::size_t text_bytes() const { return text_bytes_; }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    Entry::Owner entry;
  };

  static std::uint64_t reversed(std::uint64_t bits) {
    bits = (bits >> 1 & 0x5555555555555555) | (bits & 0x5555555555555555) << 1;
    bits = (bits >> 2 & 0x3333333333333333) | (bits & 0x3333333333333333) << 2;
    bits = (bits >> 4 & 0x0f0f0f0f0f0f0f0f) | (bits & 0x0f0f0f0f0f0f0f0f) << 4;
    return __builtin_bswap64(bits);
  }

  std::size_t mask() const { return slots_.size() - 1; }
  // The low bits have picked the shard.
  std::size_t home(std::uint64_t hash) const { return static_cast<std::size_t>(hash >> 8) & mask(); }
  std::size_t next(std::size_t at) const { return (at + 1) & mask(); }

  void place(Slot&& slot) {
    std::size_t at = home(slot.hash);
    while (slots_[at].entry) {
      at = next(at);
    }
    slots_[at] = std::move(slot);
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : 2 * slots_.size());
    old.swap(slots_);
    for (Slot& slot : old) {
      if (slot.entry) {
        place(std::move(slot));
      }
    }
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0, text_bytes_ = 0;
};

// A part of a keyspace: keys with their lock. Internal to the keyspace.
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
