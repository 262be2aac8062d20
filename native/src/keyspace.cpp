#include "rdzv/keyspace.hpp"

#include <algorithm>
#include <charconv>

#include "rdzv/number.hpp"
#include "shard_locks.hpp"

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

}  // namespace rdzv
