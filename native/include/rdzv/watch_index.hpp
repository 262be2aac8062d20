// Finds the watches that a key concerns, in about the time that those need: not that of all watches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rdzv/hash.hpp"

namespace rdzv {

struct Member;
class WatchIndex;

// One session's interest in the keys that begin with a prefix. Stays at its address while it is in the index.
struct Watch {
  Member* member = nullptr;
  std::uint32_t id = 0;  // the client's choice

 private:
  friend class WatchIndex;
  struct Bucket* bucket = nullptr;
  std::size_t position = 0;
};

// The watches of one prefix.
struct Bucket {
  std::string_view prefix;
  std::vector<Watch*> watches;
};

class WatchIndex {
 public:
  void add(std::string_view prefix, Watch& watch);
  void remove(Watch& watch);
  std::size_t size() const { return size_; }

  // Calls `tell(const Watch&)` for each whose prefix `key` begins with.
  template <class Tell>
  void match(std::string_view key, Tell tell) const {
    for (const auto& [length, prefixes] : lengths_) {
      if (length > key.size()) {
        return;
      }
      if (const auto found = buckets_.find(key.substr(0, length)); found != buckets_.end()) {
        for (const Watch* watch : found->second.watches) {
          tell(*watch);
        }
      }
    }
  }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return KeyHasher::hash(text); }
  };

  std::unordered_map<std::string, Bucket, Hash, std::equal_to<>> buckets_;
  std::map<std::size_t, std::size_t> lengths_;  // of prefixes; how many have it
  std::size_t size_ = 0;
};

}  // namespace rdzv
