// Entries by key: open addressing with linear probing, a power of two of slots, at most three quarters of them taken.
// A look-up reads one slot and one entry, where std::unordered_map follows three pointers and divides. Entries do not
// move. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "rdzv/entry.hpp"

namespace rdzv {

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

}  // namespace rdzv
