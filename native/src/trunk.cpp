#include "rdzv/trunk.hpp"

#include <algorithm>
#include <utility>

#include "rdzv/clock.hpp"
#include "rdzv/served_keyspace.hpp"
#include "rdzv/relay.hpp"
#include "rdzv/framing.hpp"

namespace rdzv {

namespace {

// For how long a proxy is given nothing to hold: one that had to be cut off, one that has only taken its time.
constexpr std::int64_t kDistrustMs = 600'000, kLateDistrustMs = 60'000;

}  // namespace

void Trunk::push(std::uint32_t id, FrameStatus status, std::string_view payload, Pushes& pushes) {
  const std::lock_guard lock(mutex_);
  push_locked(id, status, payload, pushes);
}

void Trunk::push_value(std::uint32_t id, std::uint32_t granted, std::string_view value, Pushes& pushes) {
  const std::lock_guard lock(mutex_);
  if (subscriber_ && granted == epoch_) {
    push_locked(id, FrameStatus::kValue, value, pushes);
  } else {
    push_locked(id, FrameStatus::kPresent, {}, pushes);
  }
}

void Trunk::push_locked(std::uint32_t id, FrameStatus status, std::string_view payload, Pushes& pushes) {
  log_.add(make_frame(id, static_cast<std::uint8_t>(status), payload));
  if (subscriber_ && !std::exchange(rung_, true)) {
    pushes.push_back(subscriber_);
  }
}

std::uint32_t Trunk::epoch() {
  const std::lock_guard lock(mutex_);
  return epoch_;
}

std::uint32_t Trunk::granting() {
  const std::lock_guard lock(mutex_);
  return subscriber_ && (distrusted_until_ms_ == 0 || monotonic_ms() >= distrusted_until_ms_) ? epoch_ : 0;
}

bool Trunk::ask_back(std::uint32_t epoch, std::string_view key, const std::shared_ptr<Recall>& recall, Pushes& pushes) {
  std::uint32_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (epoch != epoch_) {
      return false;
    }
    number = ++last_recall_;
    recalls_.emplace(number, Asked{recall, monotonic_ms()});
    recall->ask();
  }
  push(number, FrameStatus::kRecall, key, pushes);
  return true;
}

void Trunk::given_up(std::uint32_t number, Wakes& wakes) {
  std::shared_ptr<Recall> recall;
  const std::int64_t now_ms = monotonic_ms();
  bool late = false;
  {
    const std::lock_guard lock(mutex_);
    if (auto found = recalls_.extract(number)) {
      recall = std::move(found.mapped().recall);
      late = now_ms - found.mapped().since_ms > hold_ms() / 2;
    }
  }
  if (late) {  // writes would wait for it again and again
    distrust_until(now_ms + kLateDistrustMs);
  }
  if (recall) {
    recall->given_up(wakes);
  }
}

std::int64_t Trunk::recall_due_ms() {
  const std::lock_guard lock(mutex_);
  return recalls_.empty() ? INT64_MAX : recalls_.begin()->second.since_ms + hold_ms();
}

void Trunk::postpone_recalls(std::int64_t ms) {
  const std::lock_guard lock(mutex_);
  for (auto& [number, asked] : recalls_) {
    asked.since_ms += ms;
  }
}

void Trunk::distrust(Wakes& wakes) {
  {
    const std::lock_guard lock(mutex_);
    epoch_ = 0;
  }
  distrust_until(monotonic_ms() + kDistrustMs);
  let_go(wakes);
}

void Trunk::distrust_until(std::int64_t when_ms) {
  {
    const std::lock_guard lock(mutex_);
    distrusted_until_ms_ = std::max(distrusted_until_ms_, when_ms);
  }
  keyspace_->trunks.distrust(peer_.host(), when_ms);
}

void Trunk::keep(const std::shared_ptr<Waiter>& waiter) {
  const std::lock_guard lock(mutex_);
  waits_.emplace(waiter->id, waiter);
}

bool Trunk::waits(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  return waits_.contains(id);
}

std::shared_ptr<Waiter> Trunk::forget(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  auto found = waits_.extract(id);
  return found ? std::move(found.mapped()) : nullptr;
}

void Trunk::woken(Waiter& waiter, Pushes& pushes) {
  if (waiter.sticky) {
    keyspace_->followed(waiter, *this, pushes);
  } else if (forget(waiter.id)) {
    push(waiter.id, FrameStatus::kOk, {}, pushes);
  }
}

bool Trunk::attach(std::shared_ptr<Subscriber> subscriber, const Peer& peer, std::uint64_t received, std::uint64_t& resent,
                   Wakes& wakes) {
  {
    const std::lock_guard lock(mutex_);
    if (last_epoch_ == 0) {
      peer_ = peer;
      distrusted_until_ms_ = keyspace_->trunks.distrusted_until_ms(peer.host());
    }
    if (ended_ || !log_.rewind(received)) {
      return false;
    }
    resent = log_.kept();
    subscriber_ = std::move(subscriber);
    rung_ = false;
    epoch_ = ++last_epoch_;
  }
  let_go(wakes);
  return true;
}

bool Trunk::detach(const Subscriber* subscriber, std::int64_t now_ms, std::int64_t held_until_ms) {
  const std::lock_guard lock(mutex_);
  if (subscriber_.get() != subscriber) {
    return false;
  }
  subscriber_.reset();
  left_ms_ = now_ms;
  held_until_ms_ = held_until_ms;
  return true;
}

std::int64_t Trunk::held_until_ms() {
  const std::lock_guard lock(mutex_);
  return subscriber_ || epoch_ == 0 ? 0 : held_until_ms_;
}

std::vector<std::string> Trunk::expire(std::int64_t now_ms, Wakes& wakes) {
  bool ends = false;
  {
    const std::lock_guard lock(mutex_);
    ends = ended_ = ended_ || (!subscriber_ && now_ms >= left_ms_ + traits_.grace_ms);
    if (!ends && (subscriber_ || now_ms < held_until_ms_)) {
      return {};
    }
    epoch_ = 0;
  }
  if (ends) {
    return end(wakes);
  }
  let_go(wakes);
  return {};
}

void Trunk::let_go(Wakes& wakes) {
  decltype(recalls_) asked;
  {
    const std::lock_guard lock(mutex_);
    asked.swap(recalls_);
  }
  for (const auto& [number, each] : asked) {
    each.recall->given_up(wakes);
  }
}

bool Trunk::attached_by(const Subscriber* subscriber) {
  const std::lock_guard lock(mutex_);
  return subscriber_ != nullptr && subscriber_.get() == subscriber;
}

Trunk::Taken Trunk::take(const Subscriber* subscriber, Output& reply) {
  const std::lock_guard lock(mutex_);
  if (subscriber_.get() != subscriber) {
    return {};
  }
  rung_ = false;
  return {log_.take(reply), log_.bytes() > most_};
}

bool Trunk::acknowledge(std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  return log_.acknowledge(count);
}

std::vector<std::string> Trunk::end(Wakes& wakes) {
  decltype(waits_) waiting;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    waiting.swap(waits_);
    subscriber_.reset();
    epoch_ = 0;
    log_.clear();
  }
  keyspace_->trunks.remove(traits_.token);
  std::vector<std::string> keys;
  for (const auto& [id, waiter] : waiting) {
    keyspace_->cancel(*waiter);
    if (waiter->sticky) {
      keys.push_back(waiter->key);
    }
  }
  for (const std::string& key : keys) {  // a queue push that has woken this proxy is for somebody else
    keyspace_->give_back(key, wakes);
  }
  if (const auto mine = std::move(relay_client)) {
    mine->owner = nullptr;
    mine->trunk.reset();
  }
  let_go(wakes);
  return keys;
}

void Trunk::report(std::string_view text) {
  const std::lock_guard lock(mutex_);
  report_ = text;
}

Trunk::Summary Trunk::summary() {
  const std::lock_guard lock(mutex_);
  return {traits_.name, peer_.endpoint(), report_, subscriber_ != nullptr, waits_.size()};
}

void tell_trunks(Wakes& wakes, Pushes& pushes) {
  std::erase_if(wakes, [&](const std::shared_ptr<Waiter>& waiter) {
    const auto trunk = waiter->trunk.lock();
    if (trunk) {
      trunk->woken(*waiter, pushes);
    }
    return trunk != nullptr;
  });
}

}  // namespace rdzv
