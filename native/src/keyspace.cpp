#include "rdzv/keyspace.hpp"

#include <algorithm>
#include <charconv>

#include "rdzv/holder.hpp"
#include "rdzv/text.hpp"

namespace rdzv {

Entry& Keyspace::find_or_make(Shard& shard, const KeyView& key) {
  Entry* const entry = shard.table.find(key);
  return entry != nullptr ? *entry : shard.table.add(key);
}

void Keyspace::erase_if_unneeded(Shard& shard, Entry& entry) {
  if (!entry.needed()) {
    shard.table.erase(entry);
    shard.note_size();
  }
}

void Keyspace::release(WaitList& list, WaitNode& node, Wakes& wakes) {
  list.remove(node);
  // The owner cannot let go meanwhile: cancel() needs this shard's lock first.
  if (node.waiter->missing.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    wakes.push_back(node.waiter->shared_from_this());
  }
}

void Keyspace::written(Shard& shard, Entry& entry, std::size_t size_before, Wakes& wakes) {
  const std::size_t size = entry.value.view().size();
  if (!entry.has_value) {
    entry.has_value = true;
    ++shard.keys;
    shard.key_bytes += entry.key_size;
    shard.bytes += entry.key_size + size;
  } else {
    shard.bytes += size - size_before;
  }
  shard.note_size();
  while (WaitNode* node = entry.waiters.first()) {
    release(entry.waiters, *node, wakes);
  }
  if (entry.extras && !entry.extras->barrier.empty()) {
    arrived(entry, wakes);
  }
  shard.note_waited(entry);
}

void Keyspace::arrived(Entry& entry, Wakes& wakes) {
  const auto count = leading_number(entry.value.view());
  if (!count || *count < entry.extras->lowest_threshold) {
    return;
  }
  std::int64_t lowest = INT64_MAX;
  for (WaitNode* node = entry.extras->barrier.first(); node != nullptr;) {
    WaitNode* const next = node->next;
    if (node->threshold <= *count) {
      release(entry.extras->barrier, *node, wakes);
    } else {
      lowest = std::min(lowest, node->threshold);
    }
    node = next;
  }
  entry.extras->lowest_threshold = lowest;
}

void Keyspace::set_locked(Shard& shard, Entry& entry, std::string_view value, Wakes& wakes) {
  const std::size_t before = entry.value.view().size();
  entry.value.assign(value);
  written(shard, entry, before, wakes);
}

std::optional<std::int64_t> Keyspace::add_locked(Shard& shard, Entry& entry, std::int64_t delta, Wakes& wakes) {
  std::int64_t sum = delta;
  if (entry.has_value) {
    const auto number = leading_number(entry.value.view());
    if (!number) {
      return std::nullopt;
    }
    sum = wrapping_sum(*number, delta);
  }
  entry.changes = true;
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, sum).ptr;
  const std::size_t before = entry.value.view().size();
  entry.value.assign({text, static_cast<std::size_t>(end - text)});
  written(shard, entry, before, wakes);
  return sum;
}

void Keyspace::set(std::string_view key, std::string_view value, Wakes& wakes, Writer* writer) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  if (Entry& entry = find_or_make(shard, view); !blocked(&entry, writer, true)) {
    set_locked(shard, entry, value, wakes);
  }
}

void Keyspace::append(std::string_view key, std::string_view value, Wakes& wakes, Writer* writer) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  Entry& entry = find_or_make(shard, view);
  if (blocked(&entry, writer)) {
    return;
  }
  entry.changes = true;
  const std::size_t before = entry.value.view().size();
  entry.value.append(value);
  written(shard, entry, before, wakes);
}

void Keyspace::compare_set(std::string_view key, std::string_view expected, std::string_view desired, Output& reply,
                           Wakes& wakes, Writer* writer) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  Entry* entry = shard.table.find(view);
  const bool exists = entry != nullptr && entry->has_value;
  if (blocked(entry, writer)) {
    return;
  }
  if (exists ? entry->value.view() == expected : expected.empty()) {
    Entry& written_to = entry != nullptr ? *entry : shard.table.add(view);
    written_to.changes = true;
    set_locked(shard, written_to, desired, wakes);
    reply.bytes(desired);
  } else if (exists) {
    entry->value.write(reply);
  } else {
    reply.bytes(expected);
  }
}

void Keyspace::get(std::string_view key, Output& reply) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  if (Entry* entry = shard.table.find(view); entry != nullptr && entry->has_value) {
    entry->value.write(reply);
  } else {
    reply.bytes(std::string_view());
  }
}

std::optional<std::int64_t> Keyspace::add(std::string_view key, std::int64_t delta, Wakes& wakes, Writer* writer) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  Entry& entry = find_or_make(shard, view);
  if (blocked(&entry, writer)) {
    return 0;
  }
  return add_locked(shard, entry, delta, wakes);
}

bool Keyspace::remove(std::string_view key, Writer* writer) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  Entry* entry = shard.table.find(view);
  if (entry == nullptr || !entry->has_value || blocked(entry, writer)) {
    return false;
  }
  entry->has_value = false;
  --shard.keys;
  shard.key_bytes -= key.size();
  shard.bytes -= key.size() + entry->value.view().size();
  entry->value.clear();
  erase_if_unneeded(shard, *entry);
  shard.note_size();
  return true;
}

bool Keyspace::multi_get(Keys keys, Output& reply, std::size_t limit) {
  Locks locks(*this, keys);
  for (const KeyView& key : keys) {
    if (Entry* entry = shard_of(key).table.find(key); entry != nullptr && entry->has_value) {
      entry->value.write(reply);
    } else {
      reply.bytes(std::string_view());
    }
    if (reply.owned() > limit) {
      return false;
    }
  }
  return true;
}

void Keyspace::multi_set(Pairs pairs, Wakes& wakes, Writer* writer) {
  Locks locks(*this, pairs);
  if (writer != nullptr) {
    for (const Pair& pair : pairs) {
      if (blocked(shard_of(pair.key).table.find(pair.key), writer)) {
        return;
      }
    }
  }
  for (const Pair& pair : pairs) {
    Shard& shard = shard_of(pair.key);
    set_locked(shard, find_or_make(shard, pair.key), pair.value, wakes);
  }
}

bool Keyspace::present(Shard& shard, const KeyView& key) {
  const Entry* entry = shard.table.find(key);
  return entry != nullptr && entry->present();
}

bool Keyspace::has_all(Keys keys) {
  Locks locks(*this, keys);
  return std::all_of(keys.begin(), keys.end(), [&](const KeyView& key) { return present(shard_of(key), key); });
}

bool Keyspace::lacks_room(Keys keys, std::uint64_t most) {
  const std::uint64_t entries = entries_.load(std::memory_order_relaxed);
  if (most == 0 || entries + keys.size() <= most) {
    return false;
  }
  std::size_t fresh = 0;
  for (const KeyView& key : keys) {
    Shard& shard = shard_of(key);
    const std::lock_guard lock(shard.mutex);
    fresh += shard.table.find(key) == nullptr ? 1 : 0;
  }
  return fresh > 0 && entries + fresh > most;
}

std::size_t Keyspace::bytes() {
  std::size_t bytes = 0;
  for (Shard& shard : shards_) {
    const std::lock_guard lock(shard.mutex);
    bytes += shard.bytes;
  }
  return bytes;
}

std::int64_t Keyspace::size() {
  Locks locks(*this);
  std::size_t keys = 0;
  for (const Shard& shard : shards_) {
    keys += shard.keys;
  }
  return static_cast<std::int64_t>(keys);
}

bool Keyspace::list_some(KeyList& list) {
  std::size_t places = 0;
  while (list.shard < kShards) {
    Shard& shard = shards_[list.shard];
    const std::lock_guard lock(shard.mutex);
    if (list.place == 0) {
      list.wiped = shard.wiped;
    }
    do {
      if (list.wiped != shard.wiped) {  // none of those that were to come is there any more
        list.place = 0;
        break;
      }
      if (++places > kSlice) {
        return false;
      }
      list.place = shard.table.scan(list.place, [&](const Entry& entry) {
        if (entry.has_value) {
          list.add(entry.key());
        }
      });
    } while (list.place != 0);
    ++list.shard;
  }
  return true;
}

// The waiting half of the keyspace: WAIT, BARRIER, queues, and who waits for what.

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
