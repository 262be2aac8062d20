// One WAIT or BARRIER that has not been answered, and the lists that it stands in.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rdzv/peer.hpp"

namespace rdzv {

class Trunk;
class Waiter;
struct Entry;

// A place in the list of one awaited key. Guarded by the lock of that key's shard.
struct WaitNode {
  WaitNode* previous = nullptr;
  WaitNode* next = nullptr;
  Entry* entry = nullptr;  // of the key; null: not in a list
  Waiter* waiter = nullptr;
  std::int64_t threshold = 0;  // a barrier's world size
  std::uint8_t shard = 0;      // these two never change once the node is in a list
  bool barrier = false;        // in the barrier's list of the key, not in that of its waiters
};

// First come, first served. Guarded by the shard's lock.
class WaitList {
 public:
  bool empty() const { return first_ == nullptr; }
  WaitNode* first() const { return first_; }
  std::size_t size() const { return size_; }
  void push(WaitNode& node);
  void remove(WaitNode& node);

 private:
  WaitNode* first_ = nullptr;
  WaitNode* last_ = nullptr;
  std::size_t size_ = 0;
};

// Whom to tell. `owner` means something to the event loop `loop` alone; with a `trunk`, that is told instead.
struct WaitOwner {
  std::uint32_t loop = 0;
  void* owner = nullptr;
  const Peer* peer = nullptr;
  std::int64_t now_ms = 0;
  std::uint64_t turn = 0;  // of that loop
  std::weak_ptr<Trunk> trunk{};
  std::uint32_t id = 0;  // of the trunk's request
  bool sticky = false;   // of the wait that a proxy shares: goes on when a queue push has woken it
  bool quiet = false;    // nobody waits yet: the proxy has looked ahead
};

// Its owner holds it until it is released or cancelled; whoever sets its last key passes a reference on to the
// owner's loop.
class Waiter : public std::enable_shared_from_this<Waiter> {
 public:
  Waiter(const WaitOwner& who, std::size_t keys)
      : loop(who.loop),
        owner(who.owner),
        peer(who.peer),
        since_ms(who.now_ms),
        turn(who.turn),
        trunk(who.trunk),
        id(who.id),
        sticky(who.sticky),
        quiet(who.quiet) {
    nodes.reserve(keys);
  }

  // A new node, for the list of `entry`.
  WaitNode& place(Entry& entry, std::size_t shard) {
    WaitNode& node = nodes.emplace_back();
    node.entry = &entry;
    node.waiter = this;
    node.shard = static_cast<std::uint8_t>(shard);
    return node;
  }

  const std::uint32_t loop;
  // Touched by the owner's loop only:
  void* owner;               // null once the connection has gone
  std::size_t position = 0;  // in the owner's list of waits
  const Peer* const peer;
  const std::int64_t since_ms;
  const std::uint64_t turn;
  const std::weak_ptr<Trunk> trunk;
  const std::uint32_t id;
  const bool sticky;
  const bool quiet;
  bool writes = false;  // waits for proxies to give up a value: see Recall
  std::string key;      // of a sticky one
  std::atomic<std::uint32_t> pushes{0};  // that have woken a sticky one and were not told yet
  std::atomic<bool> queued{false};       // its key is a queue, which it was not told yet
  std::vector<std::shared_ptr<void>> marks;  // of one that writes: keep others from holding what it asks back
  std::atomic<std::uint32_t> missing{1};  // keys, and one until all of them are in their lists
  std::vector<WaitNode> nodes;            // never grows beyond what was reserved: the lists point into it
};

using Wakes = std::vector<std::shared_ptr<Waiter>>;

inline void WaitList::push(WaitNode& node) {
  node.previous = last_;
  node.next = nullptr;
  (last_ != nullptr ? last_->next : first_) = &node;
  last_ = &node;
  ++size_;
}

inline void WaitList::remove(WaitNode& node) {
  (node.previous != nullptr ? node.previous->next : first_) = node.next;
  (node.next != nullptr ? node.next->previous : last_) = node.previous;
  node.entry = nullptr;
  --size_;
}

}  // namespace rdzv
