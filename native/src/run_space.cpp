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
  deleted_bytes_ += deletions_.back().key.size();
  while (deletions_.size() > kDeletions || deleted_bytes_ > kDeletedBytes) {
    compacted_ = deletions_.front().revision;
    deleted_bytes_ -= deletions_.front().key.size();
    deletions_.pop_front();
  }
}

std::size_t RunSpace::size() const {
  constexpr std::size_t kEntry = 160;  // what it costs to know a key
  return bytes_ + entries_.size() * kEntry;
}

void RunSpace::note_size(std::size_t size) {
  if (stored_ != nullptr && size != told_) {
    stored_->fetch_add(size - told_, std::memory_order_relaxed);  // modulo 2^64, down as well as up
    told_ = size;
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
  note_size(size());
  return {true, revision_, {}};
}

RunSpace::Lacks RunSpace::lacks_room(std::span<const Pair> pairs, std::size_t size_of_write, const Limits& limits) {
  const std::lock_guard lock(mutex_);
  if (size() + size_of_write > limits.run_bytes) {
    return Lacks::kBytes;
  }
  if (stored_ != nullptr && limits.stored_bytes > 0 && *stored_ + size_of_write > limits.stored_bytes) {
    return Lacks::kBytesOfAll;
  }
  if (entries_.size() + pairs.size() > limits.run_keys) {
    const auto fresh = std::count_if(pairs.begin(), pairs.end(), [&](const Pair& pair) { return !entries_.contains(pair.key); });
    if (fresh > 0 && entries_.size() + static_cast<std::size_t>(fresh) > limits.run_keys) {
      return Lacks::kKeys;
    }
  }
  return Lacks::kNothing;
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
  note_size(size());
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
                                  const Limits& limits, Pushes& pushes) {
  const std::lock_guard lock(mutex_);
  if (member.watches.contains(id)) {
    return Watched::kTaken;
  }
  if (member.watches.size() >= limits.watches) {
    return Watched::kTooMany;
  }
  if (watches_.size() >= limits.run_watches) {
    return Watched::kTooManyOfRun;
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
  note_size(size());
}

RunSpace::Summary RunSpace::summary() {
  const std::lock_guard lock(mutex_);
  return {name_, 0, entries_.size(), watches_.size(), bytes_, revision_};
}

Spaces::Entered Spaces::enter(std::string_view run, std::string_view owner, const Limits& limits) {
  const std::lock_guard lock(mutex_);
  auto found = places_.find(run);
  if (found != places_.end() && found->second.owner != owner) {
    return {nullptr, Entry::kForeign};
  }
  if (sessions() >= limits.sessions) {
    return {nullptr, Entry::kTooMany};
  }
  if (found != places_.end() && found->second.sessions >= limits.run_sessions) {
    return {nullptr, Entry::kTooManyOfRun};
  }
  if (found == places_.end()) {
    auto space = std::make_shared<RunSpace>(std::string(run), &stored_);
    found = places_.emplace(std::string(run), Place{std::move(space), std::string(owner)}).first;
  }
  ++found->second.sessions;
  sessions_.fetch_add(1, std::memory_order_relaxed);
  return {found->second.space};
}

void Spaces::leave(const RunSpace& space) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(space.name());
  sessions_.fetch_sub(1, std::memory_order_relaxed);
  if (--found->second.sessions == 0) {
    places_.erase(found);
    forgotten_.fetch_add(1, std::memory_order_relaxed);
  }
}

std::vector<RunSpace::Summary> Spaces::summaries() {
  std::vector<Place> places;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, place] : places_) {
      places.push_back(place);
    }
  }
  std::vector<RunSpace::Summary> all;
  for (const Place& place : places) {
    all.push_back(place.space->summary());
    all.back().sessions = place.sessions;
  }
  return all;
}

}  // namespace rdzv
