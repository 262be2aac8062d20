// The requests of clients on their way up. What comes down is in relay_answers.cpp.
#include "rdzv/relay.hpp"

#include <algorithm>
#include <utility>

#include "json.hpp"
#include "rdzv/clock.hpp"
#include "rdzv/server_access.hpp"
#include "rdzv/served_keyspace.hpp"
#include "rdzv/number.hpp"
#include "rdzv/payload.hpp"
#include "rdzv/trunk.hpp"
#include "rdzv/upstream.hpp"
#include "trunk_frames.hpp"

namespace rdzv {

namespace {

// How long arrivals wait for more of them; those of other proxies are on their way for longer.
constexpr std::int64_t kGatherMs = 1, kGatherProxiesMs = 5;
constexpr std::size_t kKeysReported = 10, kMostQueues = 65536, kMostAhead = 256;

void add_wire_text(std::string& to, std::string_view text) {
  add_number(to, static_cast<std::uint64_t>(text.size()));
  to.append(text);
}

}  // namespace

Relay::Relay(Host& host, LoopContext& context, std::shared_ptr<ServedKeyspace> keys, Upstream& upstream)
    : host_(host), context_(context), keys_(std::move(keys)), leaf_(upstream.traits().leaf), upstream_(upstream) {}

std::uint32_t Relay::send(Operation operation, std::string_view payload, Pending pending) {
  const std::uint32_t id = ++last_id_;
  pending_.emplace(id, std::move(pending));
  upstream_.push(operation, id, payload);
  return id;
}

bool Relay::admits(const std::shared_ptr<RelayClient>& relay_client, bool fence) {
  if (relay_client->arriving) {  // what comes behind an arrival is not to overtake it
    send_all_arrivals(INT64_MAX);
  }
  const bool full = upstream_.full();
  if (!full && !(fence && relay_client->unconfirmed > 0)) {
    relay_client->fenced = false;
    return true;
  }
  relay_client->fenced = true;
  if (full) {
    stalled_.push_back(relay_client);
  }
  return false;
}

void Relay::forward(std::string_view raw, Asker asker) {
  send(Operation::kForward, raw, {Pending::Kind::kForward, {}, {}, std::move(asker)});
}

void Relay::write(std::string_view raw, Asker asker) {
  ++asker.relay_client->unconfirmed;
  send(Operation::kForward, raw, {Pending::Kind::kWrite, {}, {}, std::move(asker)});
}

void Relay::set(std::string_view key, std::string_view value, std::string_view raw, Asker asker) {
  ++asker.relay_client->unconfirmed;
  if (leaf_) {  // the root does not ask this value back for our own sake
    keys_->remove(key);
    ++setting_[std::string(key)];
  }
  send(Operation::kForward, raw, {Pending::Kind::kSet, std::string(key), std::string(value), std::move(asker)});
}

void Relay::fetch(std::string_view key, std::string_view raw, Asker asker) {
  look_ahead(key);
  send(Operation::kForward, raw, {Pending::Kind::kFetch, std::string(key), {}, std::move(asker)});
}

void Relay::add(std::string_view key, std::int64_t delta, std::string_view raw, Asker asker) {
  if (delta < 0) {  // between two of one sign nobody could have seen a value that is beyond both
    return forward(raw, std::move(asker));
  }
  const std::string name(key);
  Adds& adds = adds_[name];
  if (!adds.flying && adds.shares.empty()) {
    adds_ready_.push_back(name);
  }
  adds.shares.push_back({std::move(asker), delta});
}

void Relay::send_adds(const std::string& key, Adds& adds) {
  std::int64_t sum = 0;
  std::size_t count = 0;
  for (; count < adds.shares.size(); ++count) {
    std::int64_t more = 0;
    if (__builtin_add_overflow(sum, adds.shares[count].count, &more)) {
      break;
    }
    sum = more;
  }
  Pending pending{Pending::Kind::kAdd, key};
  const auto end = adds.shares.begin() + static_cast<std::ptrdiff_t>(count);
  pending.shares.assign(std::make_move_iterator(adds.shares.begin()), std::make_move_iterator(end));
  adds.shares.erase(adds.shares.begin(), end);
  adds.flying = true;
  saved_adds.add(count - 1);
  std::string raw(1, static_cast<char>(Query::kAdd));
  add_wire_text(raw, key);
  add_number(raw, sum);
  send(Operation::kForward, raw, std::move(pending));
}

void Relay::arrive(std::string_view key, std::int64_t world_size, std::int64_t arrivals, std::shared_ptr<Waiter> waiter,
                   Asker asker) {
  const auto what = std::make_pair(std::string(key), world_size);
  Arrivals& gathered = arrivals_[what];
  if (gathered.shares.empty()) {
    gathered.deadline_ms = context_.now_ms + (leaf_ ? kGatherMs : kGatherProxiesMs);
  }
  gathered.count += arrivals;
  asker.relay_client->arriving = true;
  gathered.shares.push_back({std::move(asker), arrivals, std::move(waiter)});
  if (gathered.shares.size() >= keys_->connections.load(std::memory_order_relaxed)) {
    gathered.deadline_ms = 0;  // nobody else can come
  }
}

void Relay::send_arrivals(const std::pair<std::string, std::int64_t>& what, Arrivals& arrivals) {
  std::string payload;
  add_text(payload, what.first);
  add_number(payload, what.second);
  add_number(payload, arrivals.count);
  for (const Share& share : arrivals.shares) {
    share.asker.relay_client->arriving = false;
  }
  saved_arrivals.add(arrivals.shares.size() - 1);
  Pending pending{Pending::Kind::kArrive, what.first};
  pending.shares = std::move(arrivals.shares);
  send(Operation::kArrive, payload, std::move(pending));
}

void Relay::want(std::string_view key, bool reads, const std::shared_ptr<Waiter>& waiter) {
  if (reads) {
    look_ahead(key);
  }
  const KeyView view(key);
  if (keys_->has_all({&view, 1})) {
    return;
  }
  const auto [found, fresh] = follows_.try_emplace(std::string(key));
  if (!fresh && waiter && queues_.contains(found->first)) {
    probe(key, waiter);
    return;
  }
  if (!fresh) {
    saved_waits.add(1);
    return;
  }
  follow(found->first, reads ? kReads : 0);
}

void Relay::follow(const std::string& key, std::uint8_t flags) {
  std::string payload;
  add_text(payload, key);
  add_number(payload, flags);
  follows_[key] = {send(Operation::kFollow, payload, {Pending::Kind::kFollow, key}), context_.turn};
}

void Relay::probe(std::string_view key, const std::shared_ptr<Waiter>& waiter) {
  std::string raw(1, static_cast<char>(Query::kCheck));
  add_number(raw, std::uint64_t{1});
  add_wire_text(raw, key);
  Pending pending{Pending::Kind::kProbe, std::string(key)};
  pending.shares.push_back({{}, 0, waiter});
  send(Operation::kForward, raw, std::move(pending));
}

void Relay::note_queue(std::string_view key) {
  if (queues_.size() >= kMostQueues) {
    queues_.clear();
  }
  queues_.emplace(key);
  keys_->note_queue(key, context_.wakes);  // for proxies behind this one
}

void Relay::look_ahead(std::string_view key) {
  const auto range = read_ahead_.next(key);
  for (std::uint64_t n = range.first; n < range.end; ++n) {
    const std::string next = std::string(range.stem) + std::to_string(n);
    const KeyView view(next);
    if (!keys_->has_all({&view, 1}) && !follows_.contains(next)) {
      ahead.add(1);
      follow(next, kAhead);
      looked_ahead_.push_back(next);
    }
  }
  for (; looked_ahead_.size() > kMostAhead; looked_ahead_.pop_front()) {
    unwant(looked_ahead_.front());  // nobody has come for it
  }
}

void Relay::unwant(std::string_view key) {
  const auto found = follows_.find(std::string(key));
  if (found == follows_.end() || keys_->waited_for(key) || lost_) {
    return;
  }
  const std::uint32_t follow = found->second.id;
  follows_.erase(found);
  pending_.erase(follow);
  std::string payload;
  add_number(payload, follow);
  upstream_.push(Operation::kUnfollow, ++last_id_, payload);
}

void Relay::give_back(std::string_view key) {
  std::string payload;
  add_text(payload, key);
  upstream_.push(Operation::kGiveBack, ++last_id_, payload);
}

void Relay::check() {
  // not the time at which this turn has begun: the process may have stood still since
  upstream_.check(monotonic_ms());
}

bool Relay::has_children() const { return !keys_->trunks.all().empty(); }

void Relay::child_attached(std::uint64_t token) {
  if (cut_.erase(token) > 0 && cut_.empty()) {
    upstream_.not_before(0);
  }
}

void Relay::end_turn() {
  for (const std::string& key : std::exchange(adds_ready_, {})) {
    if (const auto found = adds_.find(key); found != adds_.end() && !found->second.flying) {
      send_adds(found->first, found->second);
    }
  }
  send_all_arrivals(context_.now_ms);
}

void Relay::send_all_arrivals(std::int64_t due_ms) {
  for (auto each = arrivals_.begin(); each != arrivals_.end();) {
    if (each->second.deadline_ms <= due_ms) {
      send_arrivals(each->first, each->second);
      each = arrivals_.erase(each);
    } else {
      ++each;
    }
  }
}

std::int64_t Relay::next_ms() const {
  std::int64_t next = INT64_MAX;
  for (const auto& [what, arrivals] : arrivals_) {
    next = std::min(next, arrivals.deadline_ms);
  }
  return next;
}

std::string Relay::report(std::string_view name, std::uint64_t requests) {
  const Keyspace::Summary summary = keys_->summary(kKeysReported, 0);
  Json json;
  std::vector<std::string> children;
  std::uint32_t proxies = 0;
  for (const auto& trunk : keys_->trunks.all()) {
    const Trunk::Summary child = trunk->summary();
    proxies += child.attached ? 1 : 0;
    children.push_back(child.report);
  }
  json.open('{').pair("name", name).pair("workers", keys_->connections.load() - proxies).pair("requests", requests);
  json.pair("upstream", upstream_.counted()).pair("saved", saved_waits.get() + saved_adds.get() + saved_arrivals.get());
  json.pair("hits", saved_hits.get()).key("waiting").open('[');
  for (const auto& waited : summary.waited) {
    json.open('{').pair("key", std::string_view(waited.key)).pair("waiters", waited.waiters);
    json.pair("oldest_s", static_cast<double>(context_.now_ms - waited.since_ms) / 1e3).close('}');
  }
  json.close(']').key("children").open('[');
  for (const std::string& child : children) {
    json.value(std::string_view(child));
  }
  return json.close(']').close('}').take();
}

}  // namespace rdzv
