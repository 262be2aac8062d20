#include "rdzv/spaces.hpp"

namespace rdzv {

std::shared_ptr<RunSpace> Spaces::enter(std::string_view run, std::string_view owner) {
  const std::lock_guard lock(mutex_);
  auto found = places_.find(run);
  if (found == places_.end()) {
    found = places_.emplace(std::string(run), Place{std::make_shared<RunSpace>(std::string(run)), std::string(owner)}).first;
  } else if (found->second.owner != owner) {
    return nullptr;
  }
  ++found->second.sessions;
  return found->second.space;
}

void Spaces::leave(const RunSpace& space) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(space.name());
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
