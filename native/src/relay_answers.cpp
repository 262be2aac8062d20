// What the root says, and what follows from it for those who wait here.
#include <utility>

#include <algorithm>
#include <cstring>

#include "rdzv/clock.hpp"
#include "rdzv/server_access.hpp"
#include "rdzv/keyspace.hpp"
#include "rdzv/number.hpp"
#include "rdzv/payload.hpp"
#include "rdzv/relay.hpp"
#include "rdzv/trunk.hpp"
#include "rdzv/upstream.hpp"

namespace rdzv {

namespace {

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
