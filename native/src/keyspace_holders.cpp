// What holders need of a keyspace: values that they may have in their caches, waits that they share.
#include <algorithm>
#include <utility>

#include "rdzv/keyspace.hpp"
#include "rdzv/payload.hpp"
#include "rdzv/holder.hpp"

namespace rdzv {

namespace {

constexpr char kMayHold = 1, kMayNot = 0;

void forget_stale(Holders& holders) {
  std::erase_if(holders.list, [](const Holders::Place& place) {
    const auto holder = place.holder.lock();
    return !holder || holder->epoch() != place.epoch;
  });
}

}  // namespace

bool Keyspace::blocked(const Entry* entry, Writer* writer, bool sets) {
  if (writer == nullptr || entry == nullptr || !entry->holders) {
    return false;
  }
  forget_stale(*entry->holders);
  for (const auto& place : entry->holders->list) {
    const bool own = sets && writer->by != nullptr && writer->by->replaces_its_own() && place.holder.lock().get() == writer->by;
    writer->blocked = writer->blocked || !own;
  }
  const auto recall = entry->holders->recall.lock();
  writer->blocked = writer->blocked || (recall && !recall->over());
  return writer->blocked;
}

void Keyspace::ask_holders(Holders& holders, std::string_view key, const std::shared_ptr<Recall>& recall, Pushes& pushes) {
  for (const auto& place : std::exchange(holders.list, {})) {
    if (const auto holder = place.holder.lock()) {
      holder->ask_back(place.epoch, key, recall, pushes);
    }
  }
}

std::shared_ptr<Waiter> Keyspace::ask_back(Keys keys, const WaitOwner& owner, Pushes& pushes) {
  const auto waiter = std::make_shared<Waiter>(owner, 0);
  waiter->writes = true;
  Locks locks(*this, keys);
  for (const KeyView& key : keys) {
    Entry* const entry = shard_of(key).table.find(key);
    if (entry == nullptr || !entry->holders) {
      continue;
    }
    Holders& holders = *entry->holders;
    forget_stale(holders);
    auto recall = holders.recall.lock();
    if (!holders.list.empty()) {
      recall = std::make_shared<Recall>();  // while there is one, nobody is added: there is none here
      holders.recall = recall;
      ask_holders(holders, key.text, recall, pushes);
    }
    if (recall) {
      recall->join(waiter);
      waiter->marks.push_back(recall);
    }
  }
  return waiter->missing.fetch_sub(1, std::memory_order_acq_rel) == 1 ? nullptr : waiter;
}

std::uint32_t Keyspace::grant(Entry& entry, Holder& holder) {
  if (!entry.has_value || entry.changes) {
    return 0;
  }
  if (!entry.holders) {
    entry.holders = std::make_unique<Holders>();
  }
  Holders& holders = *entry.holders;
  const std::uint32_t epoch = holder.granting();
  if (epoch == 0 || !holders.recall.expired()) {
    return 0;
  }
  const auto mine = holder.weak();
  const auto same = [&](const auto& place) { return !place.holder.owner_before(mine) && !mine.owner_before(place.holder); };
  const auto found = std::find_if(holders.list.begin(), holders.list.end(), same);
  if (found != holders.list.end()) {
    found->epoch = epoch;
  } else {
    holders.list.push_back({mine, epoch});
  }
  return epoch;
}

void Keyspace::fetch(std::string_view key, Holder& holder, std::uint32_t id, Pushes& pushes) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  Entry* const entry = shard.table.find(view);
  std::string text(1, entry != nullptr && grant(*entry, holder) != 0 ? kMayHold : kMayNot);
  const std::string_view value = entry != nullptr && entry->has_value ? entry->value.view() : std::string_view();
  add_number(text, static_cast<std::uint64_t>(value.size()));
  holder.push(id, FrameStatus::kOk, text.append(value), pushes);
}

void Keyspace::set_for(std::string_view key, std::string_view value, Holder& holder, std::uint32_t id, Pushes& pushes,
                       Wakes& wakes, Writer& writer) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  Entry& entry = find_or_make(shard, view);
  if (blocked(&entry, &writer, true)) {
    return;
  }
  set_locked(shard, entry, value, wakes);
  const char held = grant(entry, holder) != 0 ? kMayHold : kMayNot;
  holder.push(id, FrameStatus::kOk, {&held, 1}, pushes);
}

void Keyspace::grant_to(std::string_view key, Holder& holder, std::uint32_t id, Pushes& pushes) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  Entry* const entry = shard.table.find(view);
  const char held = entry != nullptr && grant(*entry, holder) != 0 ? kMayHold : kMayNot;
  holder.push(id, FrameStatus::kOk, {&held, 1}, pushes);
}

std::shared_ptr<Waiter> Keyspace::follow(std::string_view key, const WaitOwner& owner, Holder& holder, Pushes& pushes) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  Entry* entry = shard.table.find(view);
  if (entry == nullptr || !entry->present()) {
    entry = &find_or_make(shard, view);
    shard.note_size();
    const auto waiter = std::make_shared<Waiter>(owner, 1);  // `missing` begins at 1, which is this one key
    waiter->key = key;
    holder.keep(waiter);
    entry->waiters.push(waiter->place(*entry, index(view)));
    shard.note_waited(*entry);
    if (entry->extras && entry->extras->told) {
      holder.push(owner.id, FrameStatus::kQueued, key, pushes);
    }
    return waiter;
  }
  if (grant(*entry, holder) != 0) {
    holder.push(owner.id, FrameStatus::kValue, entry->value.view(), pushes);
  } else {
    holder.push(owner.id, FrameStatus::kPresent, {}, pushes);
  }
  return nullptr;
}

void Keyspace::followed(Waiter& waiter, Holder& holder, Pushes& pushes) {
  if (waiter.queued.exchange(false)) {
    holder.push(waiter.id, FrameStatus::kQueued, waiter.key, pushes);
  }
  for (auto pushed = waiter.pushes.exchange(0); pushed > 0; --pushed) {
    holder.push(waiter.id, FrameStatus::kWoken, waiter.key, pushes);
  }
  if (waiter.missing.load(std::memory_order_acquire) > 0 || !holder.forget(waiter.id)) {
    return;
  }
  const KeyView view(waiter.key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  Entry* const entry = shard.table.find(view);
  if (const std::uint32_t granted = entry != nullptr ? grant(*entry, holder) : 0; granted != 0) {
    holder.push_value(waiter.id, granted, entry->value.view(), pushes);
  } else {
    holder.push(waiter.id, FrameStatus::kPresent, {}, pushes);
  }
}

void Keyspace::tell_of_queue(Entry& entry, Wakes& wakes) {
  if (std::exchange(entry.more().told, true)) {
    return;
  }
  for (WaitNode* node = entry.waiters.first(); node != nullptr; node = node->next) {
    if (node->waiter->sticky) {
      node->waiter->queued.store(true);
      wakes.push_back(node->waiter->shared_from_this());
    }
  }
}

void Keyspace::wake_one_locked(Entry& entry, Wakes& wakes) {
  // Until one client is released: those before it wait for other keys too.
  for (const std::size_t woken = wakes.size(); wakes.size() == woken && !entry.waiters.empty();) {
    WaitNode& node = *entry.waiters.first();
    if (!node.waiter->sticky) {
      release(entry.waiters, node, wakes);
      continue;
    }
    entry.waiters.remove(node);  // somebody of that proxy has had a turn: it goes to the end
    node.entry = &entry;
    entry.waiters.push(node);
    node.waiter->pushes.fetch_add(1);
    wakes.push_back(node.waiter->shared_from_this());
  }
}

bool Keyspace::wake_one(std::string_view key, Wakes& wakes) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  Entry* const entry = shard.table.find(view);
  if (entry == nullptr) {
    return false;
  }
  const std::size_t before = wakes.size();
  wake_one_locked(*entry, wakes);
  shard.note_waited(*entry);
  erase_if_unneeded(shard, *entry);
  return wakes.size() > before;
}

void Keyspace::give_back(std::string_view key, Wakes& wakes) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  if (Entry* const entry = shard.table.find(view); entry != nullptr && entry->has_queue()) {
    wake_one_locked(*entry, wakes);
    shard.note_waited(*entry);
  }
}

void Keyspace::release(std::string_view key, std::uint64_t turn, std::int64_t before_ms, Wakes& wakes) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  Entry* const entry = shard.table.find(view);
  if (entry == nullptr) {
    return;
  }
  for (WaitNode* node = entry->waiters.first(); node != nullptr;) {
    WaitNode* const next = node->next;
    if (node->waiter->turn <= turn || node->waiter->since_ms < before_ms) {
      release(entry->waiters, *node, wakes);
    }
    node = next;
  }
  shard.note_waited(*entry);
  erase_if_unneeded(shard, *entry);
}

void Keyspace::note_queue(std::string_view key, Wakes& wakes) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  if (Entry* const entry = shard.table.find(view); entry != nullptr) {
    tell_of_queue(*entry, wakes);
  }
}

void Keyspace::release_one(Waiter& waiter, std::string_view key, Wakes& wakes) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  for (WaitNode& node : waiter.nodes) {
    if (Entry* const entry = node.entry; entry != nullptr && entry->key() == key) {
      release(entry->waiters, node, wakes);
      shard.note_waited(*entry);
      erase_if_unneeded(shard, *entry);
    }
  }
}

Wakes Keyspace::waiting(std::string_view key) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  Wakes all;
  if (const Entry* const entry = shard.table.find(view)) {
    for (const WaitNode* node = entry->waiters.first(); node != nullptr; node = node->next) {
      all.push_back(node->waiter->shared_from_this());
    }
  }
  return all;
}

bool Keyspace::waited_for(std::string_view key) {
  const KeyView view(key);
  Shard& shard = shard_of(view);
  const std::lock_guard lock(shard.mutex);
  const Entry* const entry = shard.table.find(view);
  return entry != nullptr && !entry->waiters.empty();
}

}  // namespace rdzv
