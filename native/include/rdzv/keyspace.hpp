// The keys, values, queues and waits of one store, with torch's semantics. Thread-safe; knows no sockets.
//
// Keys are spread over shards, each with a lock. An operation on several keys locks all of their shards, in ascending
// order, so it is atomic, as in a server of one thread. Waiters whose last key has come are handed back in `Wakes`:
// the caller tells their owners after every lock is released.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rdzv/holder.hpp"
#include "rdzv/key_table.hpp"
#include "rdzv/output.hpp"
#include "rdzv/pause.hpp"
#include "rdzv/subscriber.hpp"
#include "rdzv/waiter.hpp"

namespace rdzv {

// The keys of a keyspace as one client asks for them: gathered in slices, so that others have their turns.
class KeyList {
 public:
  void add(std::string_view key) {
    if (pieces_.empty() || pieces_.back().size() + key.size() > kPiece) {
      pieces_.emplace_back().reserve(kPiece);
    }
    const std::uint64_t size = key.size();
    pieces_.back().append(reinterpret_cast<const char*>(&size), sizeof size).append(key);
    bytes_ += sizeof size + key.size();
    ++count_;
  }
  // As LIST_KEYS is answered. It is empty then.
  void finish(Output& reply) {
    reply.number<std::int64_t>(count_);
    for (std::string& piece : pieces_) {
      reply.own(std::move(piece));
    }
    *this = {};
  }
  std::size_t bytes() const { return bytes_; }

  // Where the next slice begins; kept by the keyspace.
  std::size_t shard = 0;
  std::uint64_t place = 0;
  std::uint64_t wiped = 0;

 private:
  static constexpr std::size_t kPiece = 256 << 10;

  std::vector<std::string> pieces_;
  std::size_t bytes_ = 0;
  std::int64_t count_ = 0;
};

class Keyspace {
 public:
  using Keys = std::span<const KeyView>;
  struct Pair {
    KeyView key;
    std::string_view value;
  };
  using Pairs = std::span<const Pair>;

  // Who writes. `blocked`: nothing was done, for proxies hold the value: see ask_back().
  struct Writer {
    const Holder* by = nullptr;
    bool blocked = false;
  };

  explicit Keyspace(std::string name) : name_(std::move(name)) {
    for (Shard& shard : shards_) {
      shard.stored = &stored_;
      shard.entries = &entries_;
    }
  }
  Keyspace(const Keyspace&) = delete;
  Keyspace& operator=(const Keyspace&) = delete;

  const std::string& name() const { return name_; }

  // Who gives no writer does not ask who holds the value.
  void set(std::string_view key, std::string_view value, Wakes& wakes, Writer* writer = nullptr);
  void append(std::string_view key, std::string_view value, Wakes& wakes, Writer* writer = nullptr);
  // Replies with the value there is now. On a missing key: creates it if `expected` is empty, else replies `expected`
  // as torch does, and changes nothing.
  void compare_set(std::string_view key, std::string_view expected, std::string_view desired, Output& reply, Wakes& wakes,
                   Writer* writer = nullptr);
  // A missing key reads as an empty value.
  void get(std::string_view key, Output& reply);
  // The sum, kept as decimal text. Nothing if the value does not begin with a number.
  std::optional<std::int64_t> add(std::string_view key, std::int64_t delta, Wakes& wakes, Writer* writer = nullptr);
  bool remove(std::string_view key, Writer* writer = nullptr);
  // False: the reply has grown beyond `limit` bytes and is not complete.
  bool multi_get(Keys keys, Output& reply, std::size_t limit);
  void multi_set(Pairs pairs, Wakes& wakes, Writer* writer = nullptr);
  bool has_all(Keys keys);
  // Of keys and of what is stored under them.
  std::size_t bytes();
  // Of values, not of queues.
  std::int64_t size();
  // Adds the next few hundred keys that have a value. True: that were all. Not a snapshot: a key that comes or goes
  // meanwhile may be among them or not, all others are, once.
  bool list_some(KeyList& list);

  // Wakes one client, of those who wait for no other key any more the one that has waited longest.
  void queue_push(std::string_view key, std::string_view value, Wakes& wakes);
  // Replies with the length before, and if that is not 0 with the oldest value.
  void queue_pop(std::string_view key, Output& reply);
  std::int64_t queue_size(std::string_view key);

  // Null: all keys have come. Else the caller keeps the waiter until it is woken or has been cancelled.
  std::shared_ptr<Waiter> wait(Keys keys, const WaitOwner& owner);
  struct Arrival {
    bool number = true;              // false: the key's value is not a number, nothing was done
    std::shared_ptr<Waiter> waiter;  // null: all have arrived
  };
  // Adds `arrivals` to the key and waits until it is at least `world_size`.
  Arrival barrier(std::string_view key, std::int64_t world_size, const WaitOwner& owner, Wakes& wakes,
                  std::int64_t arrivals = 1, Writer* writer = nullptr);
  // After this no shard knows the waiter. One that was woken at the same time may still be in some `Wakes`.
  void cancel(Waiter& waiter);

  // For holders; keyspace_holders.cpp.
  //
  // The value, with whether it may be held; and the same for a value that it has set.
  void fetch(std::string_view key, Holder& holder, std::uint32_t id, Pushes& pushes);
  void set_for(std::string_view key, std::string_view value, Holder& holder, std::uint32_t id, Pushes& pushes, Wakes& wakes,
               Writer& writer);
  // For one that a proxy has set, and this one holds: it may, too.
  void grant_to(std::string_view key, Holder& holder, std::uint32_t id, Pushes& pushes);
  // A wait on one key that many share; says so as soon as the key is there.
  std::shared_ptr<Waiter> follow(std::string_view key, const WaitOwner& owner, Holder& holder, Pushes& pushes);
  // Its waiter was woken.
  void followed(Waiter& waiter, Holder& holder, Pushes& pushes);
  // Asks those that hold the values to give them up. Null: nobody does. Else the write is to be tried again when the
  // waiter was woken, which is to be kept until then.
  std::shared_ptr<Waiter> ask_back(Keys keys, const WaitOwner& owner, Pushes& pushes);
  // Of those who wait for a key, in a proxy: those that have since before the end of `turn`, or `before_ms`; or one for a queue push.
  void release(std::string_view key, std::uint64_t turn, std::int64_t before_ms, Wakes& wakes);
  // Those who do.
  Wakes waiting(std::string_view key);
  bool wake_one(std::string_view key, Wakes& wakes);
  void note_queue(std::string_view key, Wakes& wakes);
  void release_one(Waiter& waiter, std::string_view key, Wakes& wakes);
  bool waited_for(std::string_view key);
  // A queue push has woken somebody who is not there any more: the next one, if there is still something to take.
  void give_back(std::string_view key, Wakes& wakes);

  // Forgets keys and queues. Waits stay. With `pushes`, proxies are asked to give up what they hold; that is not waited for.
  void wipe(Pushes* pushes = nullptr);
  // The same in parts, from 0 on. False: that was the last.
  bool wipe_part(std::size_t part, Pushes* pushes);

  struct Waited {
    std::string key;
    std::size_t waiters = 0;
    std::int64_t since_ms = 0;
    struct Client {
      std::string endpoint;
      std::uint32_t pid;
      std::int64_t since_ms;
    };
    std::vector<Client> clients;  // those that have waited longest
  };
  struct Summary {
    std::size_t keys = 0, queues = 0, queued = 0, bytes = 0, waited_keys = 0;
    std::vector<Waited> waited;  // longest first
  };
  // Locks one shard after the other, each for a short time. Lists the keys that have been waited for longest, at most
  // `keys` of them, each with at most `clients` clients.
  Summary summary(std::size_t keys, std::size_t clients);

  Pause pause;

  // Whether there is no room for a write of `size` bytes. The last sixteenth of `most` is for small ones: others can go
  // on counting and meeting for a while, though somebody fills the store. 0: there always is.
  bool full(std::size_t size, std::uint64_t most) const {
    return most > 0 && stored_.load(std::memory_order_relaxed) + size > (size > kSmall ? most - most / 16 : most);
  }

  // Whether there is no room for these keys; keys that are there, or are waited for, need none. 0: there always is. Each
  // shard tells its number in steps, so it may be some hundreds more or fewer.
  bool lacks_room(Keys keys, std::uint64_t most);
  // Whether that is worth a look, for so many keys.
  bool may_lack_room(std::uint64_t most, std::uint64_t keys) const {
    return most > 0 && entries_.load(std::memory_order_relaxed) + keys > most;
  }

  // Connections; kept by them.
  std::atomic<std::uint32_t> connections{0};

 private:
  static constexpr std::size_t kSmall = 4096;
  static constexpr std::size_t kSlice = 2048;  // places of the table, looked at in one go
  static constexpr std::size_t kShards = 16;  // at most 64: one bit each in a mask

  class Locks;  // of several shards, taken in ascending order

  static std::size_t index(const KeyView& key) { return key.hash % kShards; }
  Shard& shard_of(const KeyView& key) { return shards_[index(key)]; }

  static bool present(Shard& shard, const KeyView& key);
  static Waited describe(const Entry& entry, const WaitList& list, std::size_t clients);
  static Entry& find_or_make(Shard& shard, const KeyView& key);
  // Called after a value was written: counts it, and wakes who waits for it.
  static void written(Shard& shard, Entry& entry, std::size_t size_before, Wakes& wakes);
  static void arrived(Entry& entry, Wakes& wakes);  // the same for those at a barrier
  static void release(WaitList& list, WaitNode& node, Wakes& wakes);
  static void wake_one_locked(Entry& entry, Wakes& wakes);
  static void tell_of_queue(Entry& entry, Wakes& wakes);
  static void ask_holders(Holders& holders, std::string_view key, const std::shared_ptr<Recall>& recall, Pushes& pushes);
  static bool blocked(const Entry* entry, Writer* writer, bool sets = false);
  static std::uint32_t grant(Entry& entry, Holder& holder);  // 0: it may not; else by which connection
  static std::optional<std::int64_t> add_locked(Shard& shard, Entry& entry, std::int64_t delta, Wakes& wakes);
  static void set_locked(Shard& shard, Entry& entry, std::string_view value, Wakes& wakes);
  static void erase_if_unneeded(Shard& shard, Entry& entry);

  const std::string name_;
  std::atomic<std::uint64_t> stored_{0}, entries_{0};
  std::array<Shard, kShards> shards_;
};

// The locks of several shards, taken in ascending order: two threads that need the same ones never wait for each other
// in a circle.
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
