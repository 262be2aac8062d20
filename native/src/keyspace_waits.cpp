// The waiting half of the keyspace: WAIT, BARRIER, queues, and who waits for what.
#include <algorithm>

#include "rdzv/keyspace.hpp"
#include "rdzv/number.hpp"
#include "rdzv/recall.hpp"

namespace rdzv {

void Keyspace::queue_push(std::string_view key, std::string_view value, Wakes& wakes) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  Entry& entry = find_or_make(shard, view);
  auto& queue = entry.more().queue;
  shard.queues += queue.empty() ? 1 : 0;
  shard.bytes += value.size();
  ++shard.queued;
  queue.emplace_back(value);
  shard.note_size();
  entry.changes = true;
  wake_one_locked(entry, wakes);
  tell_of_queue(entry, wakes);
  shard.note_waited(entry);
}

void Keyspace::queue_pop(std::string_view key, Output& reply) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  Entry* entry = shard.table.find(view);
  if (entry == nullptr || !entry->has_queue()) {
    reply.number<std::int64_t>(0);
    return;
  }
  auto& queue = entry->extras->queue;
  reply.number<std::int64_t>(static_cast<std::int64_t>(queue.size()));
  reply.bytes(std::string_view(queue.front()));
  shard.bytes -= queue.front().size();
  --shard.queued;
  queue.pop_front();
  if (queue.empty()) {
    --shard.queues;
    erase_if_unneeded(shard, *entry);
  }
  shard.note_size();
}

std::int64_t Keyspace::queue_size(std::string_view key) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  const Entry* entry = shard.table.find(view);
  return entry != nullptr && entry->extras ? static_cast<std::int64_t>(entry->extras->queue.size()) : 0;
}

std::shared_ptr<Waiter> Keyspace::wait(Keys keys, const WaitOwner& owner) {
  if (has_all(keys)) {
    return nullptr;
  }
  const auto waiter = std::make_shared<Waiter>(owner, keys.size());
  for (const KeyView& key : keys) {
    Shard& shard = shard_of(key);
    const std::lock_guard lock(shard.mutex);
    if (present(shard, key)) {
      continue;
    }
    waiter->missing.fetch_add(1, std::memory_order_relaxed);
    Entry& entry = find_or_make(shard, key);
    shard.note_size();
    entry.waiters.push(waiter->place(entry, index(key)));
    shard.note_waited(entry);
  }
  // The one that it began with: all keys may have come while the last ones were looked at.
  return waiter->missing.fetch_sub(1, std::memory_order_acq_rel) == 1 ? nullptr : waiter;
}

Keyspace::Arrival Keyspace::barrier(std::string_view key, std::int64_t world_size, const WaitOwner& owner, Wakes& wakes,
                                    std::int64_t arrivals, Writer* writer) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  Entry& entry = find_or_make(shard, view);
  if (blocked(&entry, writer)) {
    return {};
  }
  const auto arrived = add_locked(shard, entry, arrivals, wakes);
  if (!arrived) {
    return {false, nullptr};
  }
  if (*arrived >= world_size) {
    return {};
  }
  auto waiter = std::make_shared<Waiter>(owner, 1);  // `missing` begins at 1, which is this one key
  WaitNode& node = waiter->place(entry, index(view));
  node.threshold = world_size;
  node.barrier = true;
  Extras& extras = entry.more();
  extras.lowest_threshold = extras.barrier.empty() ? world_size : std::min(extras.lowest_threshold, world_size);
  extras.barrier.push(node);
  shard.note_waited(entry);
  return {true, std::move(waiter)};
}

void Keyspace::cancel(Waiter& waiter) {
  for (WaitNode& node : waiter.nodes) {
    Shard& shard = shards_[node.shard];
    const std::lock_guard lock(shard.mutex);
    Entry* const entry = node.entry;
    if (entry == nullptr) {
      continue;
    }
    (node.barrier ? entry->extras->barrier : entry->waiters).remove(node);
    shard.note_waited(*entry);
    erase_if_unneeded(shard, *entry);
  }
}

void Keyspace::wipe(Pushes* pushes) {
  for (std::size_t part = 0; wipe_part(part, pushes); ++part) {
  }
}

bool Keyspace::wipe_part(std::size_t part, Pushes* pushes) {
  Shard& shard = shards_[part];
  const std::lock_guard lock(shard.mutex);
  shard.keys = shard.queues = shard.queued = shard.bytes = shard.key_bytes = 0;
  std::vector<Entry*> unneeded;
  shard.table.each([&](Entry& entry) {
    if (entry.holders && pushes != nullptr) {
      ask_holders(*entry.holders, entry.key(), std::make_shared<Recall>(), *pushes);
    }
    entry.has_value = false;
    entry.value.clear();
    if (entry.extras) {
      entry.extras->queue.clear();
    }
    if (!entry.needed()) {
      unneeded.push_back(&entry);
    }
  });
  for (Entry* entry : unneeded) {
    shard.table.erase(*entry);
  }
  if (shard.table.size() == 0) {
    shard.table = KeyTable();
  }
  ++shard.wiped;
  shard.note_size();
  return part + 1 < kShards;
}

Keyspace::Summary Keyspace::summary(std::size_t keys, std::size_t clients) {
  Summary summary;
  const auto later = [](const Waited& a, const Waited& b) { return a.since_ms < b.since_ms; };  // heap: latest on top
  for (Shard& shard : shards_) {
    const std::lock_guard lock(shard.mutex);
    summary.keys += shard.keys;
    summary.queues += shard.queues;
    summary.queued += shard.queued;
    summary.bytes += shard.bytes;
    summary.waited_keys += shard.waited.size();
    for (const Entry* entry : shard.waited) {
      const WaitList& list = entry->waiters.empty() ? entry->extras->barrier : entry->waiters;
      if (list.first()->waiter->quiet && list.size() == 1 && (!entry->extras || entry->extras->barrier.empty())) {
        --summary.waited_keys;
        continue;
      }
      const std::int64_t since = list.first()->waiter->since_ms;
      auto& heap = summary.waited;
      if (heap.size() == keys) {
        if (heap.empty() || since >= heap.front().since_ms) {
          continue;
        }
        std::pop_heap(heap.begin(), heap.end(), later);
        heap.pop_back();
      }
      heap.push_back(describe(*entry, list, clients));
      std::push_heap(heap.begin(), heap.end(), later);
    }
  }
  std::sort_heap(summary.waited.begin(), summary.waited.end(), later);
  return summary;
}

Keyspace::Waited Keyspace::describe(const Entry& entry, const WaitList& list, std::size_t clients) {
  Waited waited;
  waited.key = entry.key();
  waited.waiters = entry.waiters.size() + (entry.extras ? entry.extras->barrier.size() : 0);
  waited.since_ms = list.first()->waiter->since_ms;
  for (const WaitNode* node = list.first(); node != nullptr && waited.clients.size() < clients; node = node->next) {
    const Waiter& who = *node->waiter;
    waited.clients.push_back({who.peer->endpoint(), who.peer->pid.load(std::memory_order_relaxed), who.since_ms});
  }
  return waited;
}

}  // namespace rdzv
