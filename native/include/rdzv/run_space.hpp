// The keys of one run: revisions, keys that live as long as a session, watches, and a memory of what was deleted.
// Thread-safe, with one lock; knows no sockets. See PROTOCOL.md for what the operations mean.
//
// Changes are left with the subscribers of the watches that they concern, under the lock, so that each hears of them in
// the order of their revisions. Those who have to be told are handed back in `Pushes`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rdzv/clock.hpp"
#include "rdzv/limits.hpp"
#include "rdzv/subscriber.hpp"

namespace rdzv {

// What a run knows of one session. Guarded by the run's lock, but for the subscriber.
struct Member {
  explicit Member(std::shared_ptr<Subscriber> told) : subscriber(std::move(told)) {}
  const std::shared_ptr<Subscriber> subscriber;
  std::unordered_map<std::uint32_t, Watch> watches;
  std::set<std::string_view> ephemerals;  // keys that go with it
};

class RunSpace {
 public:
  // Deletions that are remembered, and bytes of their keys.
  static constexpr std::size_t kDeletions = 10'000, kDeletedBytes = 4u << 20;

  // `stored` adds up what several runs need, and outlives them.
  explicit RunSpace(std::string name, std::atomic<std::uint64_t>* stored = nullptr)
      : name_(std::move(name)), stored_(stored) {}
  RunSpace(const RunSpace&) = delete;
  RunSpace& operator=(const RunSpace&) = delete;
  ~RunSpace() { note_size(0); }

  const std::string& name() const { return name_; }
  std::uint64_t revision();

  // Nothing is done unless the key has this revision; 0: unless there is none.
  struct Guard {
    std::string_view key;
    std::uint64_t revision = 0;
  };
  struct Pair {
    std::string_view key, value;
  };
  struct Done {
    bool done = true;            // false: the guard has failed, and what follows is of its key
    std::uint64_t revision = 0;  // of the run; of the guard's key, 0 if there is none
    std::string value;           // of the guard's key
    std::uint32_t existed = 0;   // of the keys to be removed
  };
  Done put(Member& writer, bool ephemeral, const std::optional<Guard>& guard, std::span<const Pair> pairs,
           Pushes& pushes);
  // What a write of that size would need more of than there may be: of bytes in this run or in all, or of keys. Keys that
  // are there count as bytes alone.
  enum class Lacks : std::uint8_t { kNothing, kBytes, kBytesOfAll, kKeys };
  Lacks lacks_room(std::span<const Pair> pairs, std::size_t size, const Limits& limits);
  Done remove(const std::optional<Guard>& guard, std::span<const std::string_view> keys, Pushes& pushes);

  // Calls `add(const Event&)` for each key, in the order of their revisions. Returns the run's revision.
  std::uint64_t list(std::string_view prefix, const std::function<void(const Event&)>& add);

  enum class Watched : std::uint8_t { kWatched, kTaken, kCompacted, kTooMany, kTooManyOfRun };
  // What was changed after `after` is pushed at once.
  Watched watch(Member& member, std::uint32_t id, std::string_view prefix, std::uint64_t after, const Limits& limits,
                Pushes& pushes);
  // False: it has no such watch.
  bool unwatch(Member& member, std::uint32_t id);

  // The member is forgotten, with its watches and its ephemeral keys.
  void end(Member& member, Pushes& pushes);

  struct Summary {
    std::string name;
    std::size_t sessions = 0, keys = 0, watches = 0, bytes = 0;
    std::uint64_t revision = 0;
  };
  Summary summary();  // without sessions

 private:
  struct Entry {
    std::string value;
    std::uint64_t revision = 0;
    Member* owner = nullptr;  // of an ephemeral key
  };
  using Entries = std::map<std::string, Entry, std::less<>>;
  struct Deletion {
    std::uint64_t revision;
    std::string key;
  };

  // With the lock:
  std::optional<Done> failed(const std::optional<Guard>& guard) const;
  bool begins(Entries::const_iterator entry, std::string_view prefix) const;
  void own(Entries::iterator entry, Member* owner);
  void write(const Pair& pair, Member* owner, Pushes& pushes);
  void erase(Entries::iterator entry, Pushes& pushes);
  void announce(const Event& event, Pushes& pushes) const;
  std::size_t size() const;             // bytes, with what it costs to know the keys
  void note_size(std::size_t size);     // of that, for all runs

  const std::string name_;
  std::atomic<std::uint64_t>* const stored_;
  std::size_t told_ = 0;  // of it, to stored_
  std::mutex mutex_;
  std::uint64_t revision_ = 0;
  std::uint64_t compacted_ = 0;  // the revision of the last deletion that was forgotten
  std::size_t bytes_ = 0;        // of keys and values
  Entries entries_;
  std::deque<Deletion> deletions_;
  std::size_t deleted_bytes_ = 0;  // of their keys
  WatchIndex watches_;
};

// The runs of a server, and the sessions that live in them. Thread-safe; knows no sockets.

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
