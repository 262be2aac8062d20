// The requests of clients on their way up, what the root says, and what follows from it for those who wait here.
#include "rdzv/relay.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "rdzv/clock.hpp"
#include "rdzv/keyspace.hpp"
#include "rdzv/text.hpp"
#include "rdzv/payload.hpp"
#include "rdzv/served_keyspace.hpp"
#include "rdzv/server_access.hpp"
#include "rdzv/trunk.hpp"
#include "rdzv/upstream.hpp"
#include "rdzv/framing.hpp"

namespace rdzv {

namespace {

// How long arrivals wait for more of them; those of other proxies are on their way for longer.
constexpr std::int64_t kGatherMs = 1, kGatherProxiesMs = 5;
constexpr std::size_t kKeysReported = 10, kMostQueues = 65536, kMostAhead = 256;

void add_wire_text(std::string& to, std::string_view text) {
  add_number(to, static_cast<std::uint64_t>(text.size()));
  to.append(text);
}

constexpr std::size_t kCacheBytes = 256u << 20;

Refusal refusal_named(std::string_view name) {
  for (std::size_t i = 1; i < kRefusals.size(); ++i) {
    if (kRefusals[i] == name) {
      return static_cast<Refusal>(i);
    }
  }
  return Refusal::kUnknownRequest;
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

void Relay::answer(const Asker& asker, std::string_view raw) {
  RelayClient& relay_client = *asker.relay_client;
  if (relay_client.trunk) {
    relay_client.trunk->push(asker.id, FrameStatus::kOk, std::string(1, 0).append(raw), context_.pushes);
  } else if (relay_client.owner != nullptr) {
    host_.answer(relay_client.owner, raw);
  }
}

void Relay::refuse(const Asker& asker, std::string_view why) {
  RelayClient& relay_client = *asker.relay_client;
  if (relay_client.trunk) {
    relay_client.trunk->push(asker.id, FrameStatus::kError, why, context_.pushes);
  } else if (relay_client.owner != nullptr) {
    host_.refuse(relay_client.owner, refusal_named(why));
  }
}

void Relay::confirm(RelayClient& relay_client) {
  if (--relay_client.unconfirmed == 0) {
    let_go(relay_client);
  }
}

void Relay::let_go(RelayClient& relay_client) {
  if (std::exchange(relay_client.fenced, false) && relay_client.owner != nullptr) {
    host_.go_on(relay_client.owner);
  }
}

void Relay::confirmed() {
  for (const auto& relay_client : std::exchange(stalled_, {})) {
    let_go(*relay_client);
  }
}

bool Relay::hold(std::string_view key, std::string_view value) {
  if (setting_.contains(std::string(key)) || keys_->bytes() + value.size() > kCacheBytes) {
    return false;
  }
  keys_->set(key, value, context_.wakes);
  return true;
}

void Relay::on_frame(std::uint32_t id, FrameStatus status, std::string_view payload, bool resent) {
  take(id, status, payload, resent);
  host_.pass_on();
}

void Relay::take(std::uint32_t id, FrameStatus status, std::string_view payload, bool resent) {
  if (status == FrameStatus::kRecall) {
    return recall(id, payload);
  }
  if (status == FrameStatus::kWoken) {
    return woken(payload);
  }
  if (status == FrameStatus::kQueued) {
    return note_queue(payload);
  }
  auto found = pending_.extract(id);
  if (!found) {
    return;  // of a follow that is not wanted any more
  }
  Pending& done = found.mapped();
  if (status == FrameStatus::kValue || status == FrameStatus::kPresent) {
    return follow_ends(done, payload, status == FrameStatus::kValue && !resent);
  }
  if (status != FrameStatus::kOk) {
    return failed(done, payload);
  }
  const bool held = !payload.empty() && payload[0] != 0 && !resent;
  const std::string_view raw = payload.substr(payload.empty() ? 0 : 1);
  switch (done.kind) {
    case Pending::Kind::kForward:
      return answer(done.asker, raw);
    case Pending::Kind::kWrite:
      if (done.asker.relay_client->trunk) {
        answer(done.asker, raw);
      }
      return confirm(*done.asker.relay_client);
    case Pending::Kind::kSet:
      return was_set(done, held);
    case Pending::Kind::kFetch:
      return fetched(done, raw, held);
    case Pending::Kind::kAdd:
      return add_done(done, raw);
    case Pending::Kind::kArrive:
      return arrived(done);
    case Pending::Kind::kProbe:
      if (!raw.empty() && raw[0] == kReady) {
        keys_->release_one(*done.shares[0].waiter, done.key, context_.wakes);
        unwant(done.key);
      }
      return;
    case Pending::Kind::kFollow:
      return;
  }
}

void Relay::set_ends(const std::string& key) {
  if (const auto mine = setting_.find(key); mine != setting_.end() && --mine->second == 0) {
    setting_.erase(mine);
  }
}

void Relay::was_set(Pending& done, bool held) {
  set_ends(done.key);
  const bool kept = held && hold(done.key, done.value);
  RelayClient& relay_client = *done.asker.relay_client;
  if (relay_client.trunk && kept) {
    keys_->grant_to(done.key, *relay_client.trunk, done.asker.id, context_.pushes);
  } else if (relay_client.trunk) {
    answer(done.asker, {});
  }
  confirm(relay_client);
}

void Relay::fetched(Pending& done, std::string_view raw, bool held) {
  if (held && raw.size() >= 8 && hold(done.key, raw.substr(8)) && done.asker.relay_client->trunk) {
    keys_->fetch(done.key, *done.asker.relay_client->trunk, done.asker.id, context_.pushes);
  } else {
    answer(done.asker, raw);
  }
}

void Relay::add_done(Pending& done, std::string_view raw) {
  const auto found = adds_.find(done.key);
  if (raw.size() == 8) {
    std::int64_t value = 0;
    std::memcpy(&value, raw.data(), sizeof value);
    for (const Share& share : done.shares) {
      value = wrapping_sum(value, -share.count);
    }
    for (const Share& share : done.shares) {
      value = wrapping_sum(value, share.count);
      answer(share.asker, {reinterpret_cast<const char*>(&value), sizeof value});
    }
  }
  if (found == adds_.end()) {
    return;
  }
  found->second.flying = false;
  if (found->second.shares.empty()) {
    adds_.erase(found);
  } else {
    send_adds(found->first, found->second);
  }
}

void Relay::arrived(Pending& done) {
  for (const Share& share : done.shares) {
    if (share.waiter) {
      context_.wakes.push_back(share.waiter);
    } else if (const auto& trunk = share.asker.relay_client->trunk) {
      trunk->push(share.asker.id, FrameStatus::kOk, {}, context_.pushes);
    }
  }
}

void Relay::failed(Pending& done, std::string_view why) {
  for (const Share& share : done.shares) {
    if (share.asker.relay_client) {
      refuse(share.asker, why);
    }
  }
  if (done.kind == Pending::Kind::kAdd) {
    add_done(done, {});
    return;
  }
  if (done.kind == Pending::Kind::kFollow) {
    follows_.erase(done.key);
    for (const auto& waiter : keys_->waiting(done.key)) {
      if (waiter->owner != nullptr) {
        host_.refuse(waiter->owner, refusal_named(why));
      } else if (const auto trunk = waiter->trunk.lock()) {
        trunk->push(waiter->id, FrameStatus::kError, why, context_.pushes);
      }
    }
    return;
  }
  if (done.asker.relay_client) {
    refuse(done.asker, why);
    if (done.kind == Pending::Kind::kSet) {
      set_ends(done.key);
    }
    if (done.kind == Pending::Kind::kWrite || done.kind == Pending::Kind::kSet) {
      confirm(*done.asker.relay_client);
    }
  }
}

void Relay::follow_ends(const Pending& done, std::string_view value, bool held) {
  const auto found = follows_.find(done.key);
  if (found == follows_.end()) {
    return;
  }
  const Follow follow = found->second;
  follows_.erase(found);
  if (held && hold(done.key, value)) {
    return;
  }
  // It is there, or was: so for those who had begun to wait when the root was asked. The others ask again.
  // Who has waited for longer than the root's word can have been under way had begun before it, too.
  keys_->release(done.key, follow.turn, context_.now_ms - upstream_.round_trip_ms() - 1, context_.wakes);
  if (keys_->waited_for(done.key)) {
    want(done.key, false, nullptr);
  }
}

void Relay::woken(std::string_view key) {
  if (!keys_->wake_one(key, context_.wakes)) {
    unwant(key);
    return give_back(key);  // the root knows whether there is still something for somebody else
  }
  unwant(key);
}

void Relay::recall(std::uint32_t number, std::string_view key) {
  const KeyView view(key);
  const auto waiter = keys_->ask_back({&view, 1}, {context_.loop, nullptr, nullptr, context_.now_ms, context_.turn},
                                      context_.pushes);
  keys_->remove(key);
  if (waiter) {
    giving_up_.emplace(waiter.get(), std::make_pair(waiter, number));
  } else {
    say_given_up(number);
  }
}

void Relay::say_given_up(std::uint32_t number) {
  std::string payload;
  add_number(payload, number);
  upstream_.push(Operation::kRecalled, ++last_id_, payload);
}

void Relay::given_up(const Waiter& waiter) {
  if (const auto found = giving_up_.extract(&waiter)) {
    say_given_up(found.mapped().second);
  }
}

void Relay::trunk_broken() {
  keys_->wipe();
  const std::int64_t now_ms = monotonic_ms();
  std::int64_t until_ms = 0;
  for (const std::uint64_t token : host_.cut_trunks()) {
    cut_.insert(token);
    until_ms = now_ms + hold_ms(upstream_.traits().grace_ms);
  }
  for (const auto& trunk : keys_->trunks.all()) {  // and those that may not know yet that their connection has ended
    if (const std::int64_t held_until_ms = trunk->held_until_ms() + context_.stalled_ms; held_until_ms > now_ms) {
      cut_.insert(trunk->traits().token);
      until_ms = std::max(until_ms, held_until_ms);
    }
  }
  if (until_ms > 0) {
    upstream_.not_before(until_ms);
  }
}

void Relay::lost(const std::string& why) {
  lost_ = true;
  host_.close_all(why);
}

}  // namespace rdzv
