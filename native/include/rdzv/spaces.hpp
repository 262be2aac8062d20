// The runs of a server, and the sessions that live in them. Thread-safe; knows no sockets.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rdzv/clock.hpp"
#include "rdzv/run_space.hpp"

namespace rdzv {

// A run's space is made for its first session, and forgotten with its last one.
class Spaces {
 public:
  // `only`: the one run that is served here; empty: any.
  explicit Spaces(std::string only = {}) : only_(std::move(only)) {}

  const std::string& only() const { return only_; }
  bool serves(std::string_view run) const { return only_.empty() || run == only_; }

  enum class Entry : std::uint8_t { kEntered, kForeign, kTooMany, kTooManyOfRun };
  struct Entered {
    std::shared_ptr<RunSpace> space;
    Entry entry = Entry::kEntered;  // why there is no space
  };
  // For a session that begins, and for one that has ended.
  // `owner`: the name of the token that was proved for it; empty where none is needed. kForeign: the run belongs to
  // another one.
  Entered enter(std::string_view run, std::string_view owner, const Limits& limits);
  void leave(const RunSpace& space);
  // Of all runs.
  std::uint64_t sessions() const { return sessions_.load(std::memory_order_relaxed); }
  // Bytes of all runs, with what it costs to know their keys.
  std::uint64_t stored() const { return stored_.load(std::memory_order_relaxed); }
  std::uint64_t next_id() { return last_id_.fetch_add(1, std::memory_order_relaxed) + 1; }

  std::vector<RunSpace::Summary> summaries();
  // How many runs have gone, with all of their keys.
  std::uint64_t forgotten() const { return forgotten_.load(std::memory_order_relaxed); }

 private:
  struct Place {
    std::shared_ptr<RunSpace> space;
    std::string owner;  // the token by which it was opened
    std::size_t sessions = 0;
  };

  const std::string only_;
  std::atomic<std::uint64_t> stored_{0};
  std::atomic<std::uint64_t> sessions_{0};
  std::mutex mutex_;
  std::map<std::string, Place, std::less<>> places_;
  std::atomic<std::uint64_t> last_id_{0};
  std::atomic<std::uint64_t> forgotten_{0};
};

// Belongs to one connection, and to its loop but for the member.
class Session {
 public:
  // `owner`: see Spaces::enter. It has no space if the run could not be entered.
  Session(Spaces& spaces, std::string_view run, std::string_view owner, const Limits& limits,
          std::shared_ptr<Subscriber> told, std::int64_t time_to_live_ms, std::int64_t now_ms)
      : Session(spaces, spaces.enter(run, owner, limits), std::move(told), time_to_live_ms, now_ms) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    if (space) {
      spaces_.leave(*space);
    }
  }

  // Once, before it goes: what it leaves behind is told to the others.
  void end(Pushes& pushes) {
    subscriber->owner = nullptr;
    space->end(member, pushes);
  }

  const std::uint64_t id;
  Lease lease;
  const std::shared_ptr<Subscriber> subscriber;
  Member member;
  const std::shared_ptr<RunSpace> space;
  const Spaces::Entry entry;  // why it has none

 private:
  Session(Spaces& spaces, Spaces::Entered entered, std::shared_ptr<Subscriber> told, std::int64_t time_to_live_ms,
          std::int64_t now_ms)
      : id(spaces.next_id()),
        lease{time_to_live_ms, now_ms},
        subscriber(std::move(told)),
        member(subscriber),
        space(std::move(entered.space)),
        entry(entered.entry),
        spaces_(spaces) {}

  Spaces& spaces_;
};

}  // namespace rdzv
