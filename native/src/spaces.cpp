#include "rdzv/spaces.hpp"

namespace rdzv {

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
