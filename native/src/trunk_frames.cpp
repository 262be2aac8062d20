// A proxy's connection: how it attaches, and its frames. What they ask for is in trunk_requests.cpp; the other end is
// in upstream.cpp.
#include "trunk_frames.hpp"

#include <utility>

#include "frames.hpp"
#include "rdzv/clock.hpp"

namespace rdzv {

namespace {

constexpr std::size_t kRoom = 64 << 10, kMostReport = 4 << 20;
constexpr std::size_t kLength = 4, kHead = 5;  // the length does not count itself
constexpr std::int64_t kMinGraceMs = 100, kMaxGraceMs = 600'000;

// A follow is a question, too: a value may be its answer.
bool asks_root(Operation operation, std::string_view payload) {
  return operation == Operation::kFollow ||
         (operation == Operation::kForward && !payload.empty() && asks(static_cast<Query>(payload[0])));
}

}  // namespace

void Conversation::attach(std::uint32_t id, std::string_view bytes, Output& reply, Wakes& wakes) {
  Payload payload(bytes, context_.limits);
  const auto token = payload.number<std::uint64_t>();
  const auto received = payload.number<std::uint64_t>();
  const auto grace_ms = std::int64_t{payload.number<std::uint32_t>()};
  const auto flags = payload.flags(kLeaf | kAgain);
  const auto name = payload.key();
  payload.end();
  if (!payload.ok()) {
    refuse(payload.refusal());
    return;
  }
  if (session_ || grace_ms < kMinGraceMs || grace_ms > kMaxGraceMs) {
    answer(reply, id, FrameStatus::kError, session_ ? "a connection with a session cannot be a trunk" : "not a grace");
    return;
  }
  if (context_.relay != nullptr && !context_.relay->takes_proxies()) {
    answer(reply, id, FrameStatus::kError, context_.relay->is_lost() ? "it has lost its own root" : "it is a leaf, which takes no proxies");
    return;
  }
  auto trunk = keyspace_->trunks.find(token);
  const bool fresh = !trunk;
  if (!trunk && (flags & kAgain) != 0) {
    answer(reply, id, FrameStatus::kError, "this trunk is not known here (any more)");
    return;
  }
  if (!trunk) {
    Trunk::Traits traits{token, std::string(name), (flags & kLeaf) != 0, grace_ms};
    trunk = std::make_shared<Trunk>(keyspace_, std::move(traits), context_.limits.output_bytes);
  }
  const std::lock_guard working(trunk->working);
  std::uint64_t resent = 0;
  auto subscriber = std::make_shared<Subscriber>(context_.loop, owner_, 0);
  if (!trunk->attach(subscriber, peer_, received, resent, wakes)) {
    answer(reply, id, FrameStatus::kError, "what this trunk has missed is not known any more");
    return;
  }
  if (fresh) {
    keyspace_->trunks.add(token, trunk);
  }
  trunk_ = std::move(trunk);
  subscriber_ = std::move(subscriber);
  trunk_lease_ = {grace_ms, context_.running_ms()};
  phase_ = Phase::kTrunk;
  std::string text;
  add_number(text, trunk_->run);
  add_number(text, resent);
  answer(reply, id, FrameStatus::kOk, text);
  trunk_->take(subscriber_.get(), reply);
  if (context_.relay != nullptr) {
    if (!trunk_->relay_client) {
      trunk_->relay_client = relay_client();
    }
    relay_client_ = trunk_->relay_client;
    relay_client_->owner = owner_;
    relay_client_->trunk = trunk_;
    context_.relay->child_attached(token);
  }
}

std::shared_ptr<Trunk> Conversation::end_trunk() {
  if (holders_) {
    holders_->owner = nullptr;
    holders_.reset();
  }
  if (relay_client_ && relay_client_->owner == owner_) {
    relay_client_->owner = nullptr;
  }
  relay_client_.reset();
  if (!trunk_) {
    return nullptr;
  }
  subscriber_->owner = nullptr;
  const auto trunk = std::move(trunk_);
  // It answers from what it holds for a while after it was last heard of, and those behind it for as long again.
  const std::int64_t held_until_ms = trunk_lease_.heard_ms + trunk->hold_ms() + 1;
  return trunk->detach(subscriber_.get(), context_.running_ms(), held_until_ms) ? trunk : nullptr;
}

std::size_t Conversation::trunk_frame(std::string_view bytes, Output& reply, Wakes& wakes) {
  if (bytes.size() < kLength) {
    return 0;
  }
  Fields fields(bytes);
  const auto size = fields.number<std::uint32_t>();
  // what it has may be as long as a request may: that is judged with the request, which is one client's and not the proxy's
  if (size < kHead || size > context_.limits.request_bytes + kRoom) {
    return refuse(size < kHead ? Refusal::kBadFrame : Refusal::kRequestTooLong);
  }
  if (bytes.size() < kLength + size) {
    return 0;
  }
  const auto id = fields.number<std::uint32_t>();
  const auto operation = static_cast<Operation>(fields.number<std::uint8_t>());
  const std::string_view payload = bytes.substr(kLength + kHead, size - kHead);
  if (!suspended_ && queued_.empty() && asks_root(operation, payload) && holds_back(bytes.size() == kLength + size)) {
    return 0;
  }
  context_.counters.frames.add(1);
  if (operation <= Operation::kAttach || operation > Operation::kLeave) {
    return refuse(Refusal::kBadFrame);
  }
  if (context_.relay != nullptr) {
    context_.relay->check();
    if (refusal_ != Refusal::kNone) {
      return 0;  // the root does not vouch for this proxy, which has cut off those behind it
    }
  }
  context_.counters.trunk[trunk_index(operation)].add(1);
  const std::lock_guard working(trunk_->working);
  if (!trunk_->attached_by(subscriber_.get())) {
    return refuse(Refusal::kTrunkSilent);  // another connection has taken over, and has been sent this again
  }
  if (!is_counted(operation)) {
    say(operation, payload, reply, wakes);
  } else if (suspended_ || !queued_.empty()) {
    queued_.emplace_back(bytes.substr(0, kLength + size));
    queued_bytes_ += size;
    if (queued_bytes_ > 2 * context_.limits.request_bytes + kRoom) {
      return refuse(Refusal::kRequestTooLong);
    }
    if (operation == Operation::kRecalled) {  // what is waited for may be this; to run it again later does no harm
      run(operation, id, payload, wakes);
    }
  } else if (run(operation, id, payload, wakes)) {
    ++trunk_->run;
    tell_trunks(wakes, context_.pushes);  // of what this has changed, before what the next one says
  } else if (refusal_ == Refusal::kNone) {
    queued_.emplace_back(bytes.substr(0, kLength + size));
    queued_bytes_ += size;
  }
  return refusal_ == Refusal::kNone ? kLength + size : 0;
}

void Conversation::drain(Wakes& wakes) {
  while (!queued_.empty() && !suspended_ && refusal_ == Refusal::kNone) {
    const std::lock_guard working(trunk_->working);
    if (!trunk_->attached_by(subscriber_.get())) {
      refuse(Refusal::kTrunkSilent);
      return;
    }
    const std::string& frame = queued_.front();
    Fields fields(frame);
    fields.number<std::uint32_t>();
    const auto id = fields.number<std::uint32_t>();
    const auto operation = static_cast<Operation>(fields.number<std::uint8_t>());
    if (!run(operation, id, std::string_view(frame).substr(kLength + kHead), wakes)) {
      return;
    }
    ++trunk_->run;
    tell_trunks(wakes, context_.pushes);
    queued_bytes_ -= frame.size() - kLength;
    queued_.pop_front();
  }
}

void Conversation::say(Operation operation, std::string_view bytes, Output& reply, Wakes& wakes) {
  if (operation == Operation::kLeave) {
    for (const std::string& key : trunk_->end(wakes)) {
      if (context_.relay != nullptr) {
        context_.relay->unwant(key);
      }
    }
    return;
  }
  if (operation == Operation::kReport && bytes.size() > kMostReport) {
    refuse(Refusal::kRequestTooLong);
    return;
  }
  if (operation == Operation::kReport) {
    trunk_->report(bytes);
    return;
  }
  Payload payload(bytes, context_.limits);
  const auto received = payload.number<std::uint64_t>();
  payload.end();
  if (!payload.ok() || !trunk_->acknowledge(received)) {
    refuse(Refusal::kBadFrame);
    return;
  }
  // not when this turn began: the answer is good for a while from now
  trunk_lease_.heard_ms = monotonic_ms() - context_.stalled_ms;
  trunk_->take(subscriber_.get(), reply);  // the answer vouches for what the proxy holds: what is recalled by now comes before it
  std::string text;
  add_number(text, trunk_->run);
  answer(reply, 0, FrameStatus::kReceived, text);
}

}  // namespace rdzv
