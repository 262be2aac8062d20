// Where the changes of a run are left for one connection, by any thread. Knows no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rdzv/hash.hpp"
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

// Finds the watches that a key concerns, in about the time that those need: not that of all watches.
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
