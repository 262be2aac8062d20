#include "rdzv/run_space.hpp"

#include <algorithm>
#include <vector>

namespace rdzv {

namespace {

void tell(const std::shared_ptr<Subscriber>& subscriber, std::uint32_t watch, const Event& event, Pushes& pushes) {
  if (subscriber->push(watch, event)) {
    pushes.push_back(subscriber);
  }
}

void sort_by_revision(std::vector<Event>& events) {
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.revision < b.revision; });
}

}  // namespace

std::uint64_t RunSpace::revision() {
  const std::lock_guard lock(mutex_);
  return revision_;
}

std::optional<RunSpace::Done> RunSpace::failed(const std::optional<Guard>& guard) const {
  if (!guard) {
    return std::nullopt;
  }
  const auto found = entries_.find(guard->key);
  const bool there = found != entries_.end();
  if (guard->revision == (there ? found->second.revision : 0)) {
    return std::nullopt;
  }
  return there ? Done{false, found->second.revision, found->second.value} : Done{false, 0, {}};
}

bool RunSpace::begins(Entries::const_iterator entry, std::string_view prefix) const {
  return entry != entries_.end() && entry->first.starts_with(prefix);
}

void RunSpace::own(Entries::iterator entry, Member* owner) {
  if (owner != nullptr) {
    owner->ephemerals.insert(entry->first);
  }
  Member*& before = entry->second.owner;
  if (before != nullptr && before != owner) {
    before->ephemerals.erase(entry->first);
  }
  before = owner;
}

void RunSpace::announce(const Event& event, Pushes& pushes) const {
  watches_.match(event.key, [&](const Watch& watch) { tell(watch.member->subscriber, watch.id, event, pushes); });
}

void RunSpace::write(const Pair& pair, Member* owner, Pushes& pushes) {
  auto entry = entries_.lower_bound(pair.key);
  if (entry == entries_.end() || entry->first != pair.key) {
    entry = entries_.emplace_hint(entry, std::string(pair.key), Entry());
    bytes_ += pair.key.size();
  }
  own(entry, owner);
  bytes_ += pair.value.size() - entry->second.value.size();  // modulo 2^64, down as well as up
  entry->second.value.assign(pair.value);
  entry->second.revision = ++revision_;
  announce({false, revision_, pair.key, pair.value}, pushes);
}

void RunSpace::erase(Entries::iterator entry, Pushes& pushes) {
  own(entry, nullptr);
  bytes_ -= entry->first.size() + entry->second.value.size();
  deletions_.push_back({++revision_, entry->first});
  entries_.erase(entry);
  announce({true, revision_, deletions_.back().key, {}}, pushes);
  if (deletions_.size() > kDeletions) {
    compacted_ = deletions_.front().revision;
    deletions_.pop_front();
  }
}

RunSpace::Done RunSpace::put(Member& writer, bool ephemeral, const std::optional<Guard>& guard,
                             std::span<const Pair> pairs, Pushes& pushes) {
  const std::lock_guard lock(mutex_);
  if (auto why_not = failed(guard)) {
    return *std::move(why_not);
  }
  for (const Pair& pair : pairs) {
    write(pair, ephemeral ? &writer : nullptr, pushes);
  }
  return {true, revision_, {}};
}

bool RunSpace::full(std::size_t size, std::size_t most) {
  constexpr std::size_t kEntry = 160;  // what it costs to know a key
  const std::lock_guard lock(mutex_);
  return bytes_ + entries_.size() * kEntry + size > most;
}

RunSpace::Done RunSpace::remove(const std::optional<Guard>& guard, std::span<const std::string_view> keys,
                                Pushes& pushes) {
  const std::lock_guard lock(mutex_);
  if (auto why_not = failed(guard)) {
    return *std::move(why_not);
  }
  Done done;
  for (const std::string_view key : keys) {
    if (const auto found = entries_.find(key); found != entries_.end()) {
      erase(found, pushes);
      ++done.existed;
    }
  }
  done.revision = revision_;
  return done;
}

std::uint64_t RunSpace::list(std::string_view prefix, const std::function<void(const Event&)>& add) {
  const std::lock_guard lock(mutex_);
  std::vector<Event> found;
  for (auto entry = entries_.lower_bound(prefix); begins(entry, prefix); ++entry) {
    found.push_back({false, entry->second.revision, entry->first, entry->second.value});
  }
  sort_by_revision(found);
  std::for_each(found.begin(), found.end(), add);
  return revision_;
}

RunSpace::Watched RunSpace::watch(Member& member, std::uint32_t id, std::string_view prefix, std::uint64_t after,
                                  std::size_t most, Pushes& pushes) {
  const std::lock_guard lock(mutex_);
  if (member.watches.contains(id)) {
    return Watched::kTaken;
  }
  if (member.watches.size() >= most) {
    return Watched::kTooMany;
  }
  // A revision that is still to come is of another history: that of a server before this one.
  if (after != 0 && (after < compacted_ || after > revision_)) {
    return Watched::kCompacted;
  }
  std::vector<Event> missed;
  for (auto entry = entries_.lower_bound(prefix); begins(entry, prefix); ++entry) {
    if (entry->second.revision > after) {
      missed.push_back({false, entry->second.revision, entry->first, entry->second.value});
    }
  }
  if (after != 0) {
    auto deletion = std::upper_bound(deletions_.begin(), deletions_.end(), after,
                                     [](std::uint64_t number, const Deletion& each) { return number < each.revision; });
    for (; deletion != deletions_.end(); ++deletion) {
      if (deletion->key.starts_with(prefix)) {
        missed.push_back({true, deletion->revision, deletion->key, {}});
      }
    }
  }
  sort_by_revision(missed);
  Watch& watch = member.watches[id];
  watch.member = &member;
  watch.id = id;
  watches_.add(prefix, watch);
  for (const Event& event : missed) {
    tell(member.subscriber, id, event, pushes);
  }
  return Watched::kWatched;
}

bool RunSpace::unwatch(Member& member, std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = member.watches.find(id);
  if (found == member.watches.end()) {
    return false;
  }
  watches_.remove(found->second);
  member.watches.erase(found);
  return true;
}

void RunSpace::end(Member& member, Pushes& pushes) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, watch] : member.watches) {
    watches_.remove(watch);
  }
  member.watches.clear();
  while (!member.ephemerals.empty()) {
    erase(entries_.find(*member.ephemerals.begin()), pushes);
  }
}

RunSpace::Summary RunSpace::summary() {
  const std::lock_guard lock(mutex_);
  return {name_, 0, entries_.size(), watches_.size(), bytes_, revision_};
}

}  // namespace rdzv
