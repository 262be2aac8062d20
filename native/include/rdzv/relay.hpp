// What a proxy does with its clients' requests: answers them from what it holds, shares, combines, or sends them up.
// Runs on the one loop of the proxy. The rules, and why they are right, are in docs/internals/proxy.md.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rdzv/server_access.hpp"
#include "rdzv/framing.hpp"
#include "rdzv/query.hpp"
#include "rdzv/limits.hpp"
#include "rdzv/waiter.hpp"

namespace rdzv {

// Sees when keys are read one after the other, as gloo's ranks read each other's: then those that come next can be asked
// for before anybody waits for them.
class ReadAhead {
 public:
  // Keys after the one that is read, that are to be asked for: from `first` to before `end`.
  struct Range {
    std::string_view stem;
    std::uint64_t first = 0, end = 0;
  };

  // `key` is read.
  Range next(std::string_view key) {
    const auto digits = key.find_last_not_of("0123456789") + 1;  // npos + 1 is 0
    const std::string_view stem = key.substr(0, digits), number = key.substr(digits);
    std::uint64_t n = 0;
    if (number.empty() || number.size() > kMostDigits || (number.size() > 1 && number[0] == '0') || stem.empty()) {
      return {};
    }
    std::from_chars(number.data(), number.data() + number.size(), n);
    if (runs_.size() >= kMostRuns && !runs_.contains(std::string(stem))) {
      runs_.clear();
    }
    Run& run = runs_[std::string(stem)];
    if (n <= run.last && run.length > 0) {  // somebody is behind the first one
      return {};
    }
    // a rank does not read its own
    run.length = run.length > 0 && n <= run.last + 2 ? run.length + (n - run.last) : 1;
    run.last = n;
    if (run.length < kLeast) {
      run.asked = n + 1;
      return {};
    }
    const std::uint64_t end = n + 1 + std::min(run.length / 8 + 1, kMost);
    const std::uint64_t first = std::max(run.asked, n + 1);
    // not one by one: each request costs the root something, but a late one costs the readers a round trip
    if (first >= end || (end - first) * 2 < end - n - 1) {
      return {};
    }
    run.asked = end;
    return {stem, first, end};
  }

 private:
  static constexpr std::uint64_t kLeast = 3, kMost = 32;
  static constexpr std::size_t kMostDigits = 9, kMostRuns = 1024;

  struct Run {
    std::uint64_t last = 0, length = 0, asked = 0;
  };
  std::unordered_map<std::string, Run> runs_;
};

class ServedKeyspace;
class Upstream;
struct LoopContext;

// A conversation as the relay knows it, for as long as an answer is on its way to it.
struct RelayClient {
  void* owner = nullptr;  // its connection; null: has gone
  std::shared_ptr<Trunk> trunk{};  // of another proxy; null: a worker
  std::uint32_t unconfirmed = 0;   // writes that the root has not confirmed yet
  bool fenced = false;             // waits for them to be
  bool arriving = false;           // has an arrival that is still gathered
};

// Whom an answer is for, and the request's id if that is a proxy.
struct Asker {
  std::shared_ptr<RelayClient> relay_client;
  std::uint32_t id = 0;
};

// What the relay asks of its event loop.
class Host {
 public:
  virtual ~Host() = default;
  virtual void answer(void* connection, std::string_view raw) = 0;
  virtual void go_on(void* connection) = 0;
  virtual void refuse(void* connection, Refusal why) = 0;
  // Those who were woken are told, before anything else is said.
  virtual void pass_on() = 0;
  // The root is lost: everybody is to hear it.
  virtual void close_all(const std::string& why) = 0;
  // The root does not vouch any more for what is held: proxies behind this one are to drop it. Their tokens.
  virtual std::unordered_set<std::uint64_t> cut_trunks() = 0;
};

class Relay {
 public:
  // `keys`: of its clients, where it keeps what it may hold. `upstream` outlives it.
  Relay(Host& host, LoopContext& context, std::shared_ptr<ServedKeyspace> keys, Upstream& upstream);

  // Requests of clients; see conversation. All but these are forwarded as they are.
  void forward(std::string_view raw, Asker asker);
  void write(std::string_view raw, Asker asker);  // one that a worker gets no answer to
  void set(std::string_view key, std::string_view value, std::string_view raw, Asker asker);
  void fetch(std::string_view key, std::string_view raw, Asker asker);
  void add(std::string_view key, std::int64_t delta, std::string_view raw, Asker asker);
  // `waiter` of a worker, or an asker that has combined `arrivals`.
  void arrive(std::string_view key, std::int64_t world_size, std::int64_t arrivals, std::shared_ptr<Waiter> waiter,
              Asker asker);
  // Somebody waits for a key here; `reads`: and will read it, so others may be next.
  void want(std::string_view key, bool reads, const std::shared_ptr<Waiter>& waiter);
  void unwant(std::string_view key);            // somebody does not any more
  void give_back(std::string_view key);
  // It is a queue: who waits for it beside somebody else may be served at once.
  void note_queue(std::string_view key);
  void used_cache() { saved_hits.add(1); }
  // False: the client is to try again when it is told to go on.
  bool admits(const std::shared_ptr<RelayClient>& relay_client, bool fence);

  // What the root says.
  void on_frame(std::uint32_t id, FrameStatus status, std::string_view payload, bool resent);
  // Those behind this proxy have given up a value that the root has asked for.
  void given_up(const Waiter& waiter);
  void trunk_broken();  // nothing that is held counts any more
  void lost(const std::string& why);
  void confirmed();     // the root has taken what was sent: others may go on

  // A proxy behind this one has come, or come back.
  void child_attached(std::uint64_t token);
  bool takes_proxies() const { return !leaf_ && !lost_; }
  bool is_lost() const { return lost_; }
  bool has_children() const;

  // Before anything that is held is used.
  void check();
  // When the loop has done with everything of a turn.
  void end_turn();
  std::int64_t next_ms() const;  // when it wants another turn
  std::string report(std::string_view name, std::uint64_t requests);

  // Requests that did not go up, by why; and keys that were asked for before anybody did. Read by any thread.
  Count saved_waits, saved_adds, saved_arrivals, saved_hits, ahead;

 private:
  struct Follow {
    std::uint32_t id = 0;
    std::uint64_t turn = 0;
  };
  struct Share {
    Asker asker;
    std::int64_t count = 0;  // what is added, or how many have arrived
    std::shared_ptr<Waiter> waiter{};
  };
  struct Adds {
    bool flying = false;
    std::vector<Share> shares{};
  };
  struct Arrivals {
    std::int64_t deadline_ms = 0;
    std::int64_t count = 0;
    std::vector<Share> shares{};
  };
  struct Pending {
    enum class Kind : std::uint8_t { kForward, kWrite, kSet, kFetch, kAdd, kFollow, kArrive, kProbe } kind;
    std::string key{}, value{};
    Asker asker{};
    std::vector<Share> shares{};
  };

  std::uint32_t send(Operation operation, std::string_view payload, Pending pending);
  void answer(const Asker& asker, std::string_view raw);
  void refuse(const Asker& asker, std::string_view why);
  void confirm(RelayClient& relay_client);
  void let_go(RelayClient& relay_client);
  void send_adds(const std::string& key, Adds& adds);
  void send_all_arrivals(std::int64_t due_ms);
  void send_arrivals(const std::pair<std::string, std::int64_t>& what, Arrivals& arrivals);
  void add_done(Pending& done, std::string_view raw);
  void fetched(Pending& done, std::string_view raw, bool held);
  void arrived(Pending& done);
  void failed(Pending& done, std::string_view why);
  void follow_ends(const Pending& done, std::string_view value, bool held);
  void take(std::uint32_t id, FrameStatus status, std::string_view payload, bool resent);
  void follow(const std::string& key, std::uint8_t flags);
  void probe(std::string_view key, const std::shared_ptr<Waiter>& waiter);
  void set_ends(const std::string& key);
  void was_set(Pending& done, bool held);
  void woken(std::string_view key);
  void say_given_up(std::uint32_t number);
  void recall(std::uint32_t number, std::string_view key);
  void look_ahead(std::string_view key);
  bool hold(std::string_view key, std::string_view value);

  Host& host_;
  LoopContext& context_;
  const std::shared_ptr<ServedKeyspace> keys_;  // what is held, and who waits here
  const bool leaf_;
  Upstream& upstream_;
  std::uint32_t last_id_ = 0;
  std::unordered_map<std::uint32_t, Pending> pending_;
  std::unordered_map<std::string, Follow> follows_;
  std::unordered_map<std::string, std::uint32_t> setting_;  // how often this proxy sets the key just now
  std::unordered_map<std::string, Adds> adds_;
  std::unordered_set<std::string> queues_;
  std::vector<std::string> adds_ready_;
  std::map<std::pair<std::string, std::int64_t>, Arrivals> arrivals_;
  std::unordered_map<const Waiter*, std::pair<std::shared_ptr<Waiter>, std::uint32_t>> giving_up_;
  std::vector<std::shared_ptr<RelayClient>> stalled_;
  ReadAhead read_ahead_;
  std::deque<std::string> looked_ahead_;    // the oldest are given up when there are many
  std::unordered_set<std::uint64_t> cut_;   // proxies behind this one that may hold what the root does not vouch for any more
  bool lost_ = false;
};

}  // namespace rdzv
