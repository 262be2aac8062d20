#include "rdzv/trunk_protocol.hpp"

#include <array>
#include <mutex>
#include <utility>

#include "rdzv/framing.hpp"
#include "rdzv/clock.hpp"
#include "rdzv/query.hpp"

namespace rdzv {

namespace {

// Replies to a forwarded request, as one text behind whether the value may be held.
std::string unheld(const Output& raw) {
  std::string text(1, 0);
  std::array<iovec, 16> parts;
  Output rest = raw;
  while (!rest.empty()) {
    std::size_t size = 0;
    for (std::size_t i = 0, count = rest.gather(parts.data(), parts.size()); i < count; ++i) {
      text.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
      size += parts[i].iov_len;
    }
    rest.consume(size);
  }
  return text;
}

// Those that a proxy answers by itself, or asks in another way.
bool is_forwarded(Query query) {
  return query != Query::kValidate && query != Query::kWait && query != Query::kCancelWait && query != Query::kBarrier &&
         query != Query::kPing;
}

constexpr std::size_t kRoom = 64 << 10, kMostReport = 4 << 20;
constexpr std::int64_t kMinGraceMs = 100, kMaxGraceMs = 600'000;

// A follow is a question, too: a value may be its answer.
bool asks_root(Operation operation, std::string_view payload) {
  return operation == Operation::kFollow ||
         (operation == Operation::kForward && !payload.empty() && asks(static_cast<Query>(payload[0])));
}

}  // namespace

bool TrunkRequests::run(Operation operation, std::uint32_t id, std::string_view bytes, Wakes& wakes) {
  Payload payload(bytes, client_.loop.limits);
  if (client_.loop.relay != nullptr && operation != Operation::kRecalled && operation != Operation::kArrive &&
      !client_.loop.relay->admits(relay_client_, false)) {
    client_.suspended = true;
    return false;
  }
  switch (operation) {
    case Operation::kForward:
      return forward(id, bytes, wakes);
    case Operation::kFollow: {
      const auto key = payload.key();
      const auto flags = payload.flags(kReads | kAhead);
      payload.end();
      if (payload.ok() && trunk_->waits(id)) {
        client_.refuse(Refusal::kBadFrame);
        return false;
      }
      if (payload.refusal() == Refusal::kKeyTooLong) {  // by a limit that is not the proxy's: its clients are to hear of it
        trunk_->push(id, FrameStatus::kError, text(payload.refusal()), client_.loop.pushes);
        return true;
      }
      if (const KeyView wanted(key); payload.ok() && client_.loop.relay == nullptr &&
                                     client_.keyspace->lacks_room({&wanted, 1}, client_.loop.limits.stored_keys)) {
        trunk_->push(id, FrameStatus::kError, text(Refusal::kTooManyStoredKeys), client_.loop.pushes);
        return true;
      }
      if (payload.ok()) {
        WaitOwner who = waits_for(id, true);
        who.quiet = (flags & kAhead) != 0;
        const auto waiter = client_.keyspace->follow(key, who, *trunk_, client_.loop.pushes);
        if (client_.loop.relay != nullptr) {
          client_.loop.relay->want(key, (flags & kReads) != 0, waiter);
        }
      }
      break;
    }
    case Operation::kUnfollow: {
      const auto follow = payload.number<std::uint32_t>();
      payload.end();
      if (payload.ok()) {
        unfollow(follow);
      }
      break;
    }
    case Operation::kArrive:
      return arrive(id, payload, wakes);
    case Operation::kGiveBack: {
      const auto key = payload.key();
      payload.end();
      if (payload.ok() && client_.loop.relay != nullptr) {
        client_.loop.relay->give_back(key);
      } else if (payload.ok()) {
        client_.keyspace->give_back(key, wakes);
      }
      break;
    }
    default: {  // kRecalled
      const auto number = payload.number<std::uint32_t>();
      payload.end();
      if (payload.ok()) {
        trunk_->given_up(number, wakes);
      }
    }
  }
  if (!payload.ok()) {
    client_.refuse(payload.refusal());
  }
  return payload.ok();
}

WaitOwner TrunkRequests::waits_for(std::uint32_t id, bool sticky) const {
  return {client_.loop.loop, nullptr, &trunk_->peer(), client_.loop.now_ms, client_.loop.turn, trunk_, id, sticky};
}

void TrunkRequests::unfollow(std::uint32_t id) {
  if (const auto waiter = trunk_->forget(id)) {
    client_.keyspace->cancel(*waiter);
    if (client_.loop.relay != nullptr) {
      client_.loop.relay->unwant(waiter->key);
    }
  }
}

bool TrunkRequests::arrive(std::uint32_t id, Payload& payload, Wakes& wakes) {
  const auto key = payload.key();
  const auto world_size = payload.number<std::int64_t>();
  const auto count = payload.number<std::int64_t>();
  payload.end();
  if (payload.refusal() == Refusal::kKeyTooLong) {
    trunk_->push(id, FrameStatus::kError, text(payload.refusal()), client_.loop.pushes);
    return true;
  }
  if (!payload.ok() || trunk_->waits(id)) {
    client_.refuse(payload.ok() ? Refusal::kBadFrame : payload.refusal());
    return false;
  }
  if (client_.loop.relay != nullptr) {
    client_.loop.relay->arrive(key, world_size, count, nullptr, {relay_client_, id});
    return true;
  }
  Keyspace::Arrival arrival;
  do {
    requests_.writer = {trunk_.get()};
    arrival = client_.keyspace->barrier(key, world_size, waits_for(id, false), wakes, count, &requests_.writer);
    if (requests_.writer.blocked && requests_.wait_for_holders({KeyView(key)})) {
      return false;
    }
  } while (requests_.writer.blocked);
  requests_.forget_holders();
  if (!arrival.number) {
    trunk_->push(id, FrameStatus::kError, text(Refusal::kNotANumber), client_.loop.pushes);
  } else if (!arrival.waiter) {
    trunk_->push(id, FrameStatus::kOk, {}, client_.loop.pushes);
  } else {
    trunk_->keep(arrival.waiter);
    if (arrival.waiter->missing.load(std::memory_order_acquire) == 0) {  // the last one has come on another loop meanwhile
      trunk_->woken(*arrival.waiter, client_.loop.pushes);
    }
  }
  return true;
}

bool TrunkRequests::forward(std::uint32_t id, std::string_view raw, Wakes& wakes) {
  Scanner scanner;
  const auto scanned = raw.empty() ? Scanner::Result::kIncomplete : scanner.advance(raw, client_.loop.limits);
  if (scanned == Scanner::Result::kRefused) {  // for instance by limits that are not the proxy's: its client is to hear of it
    trunk_->push(id, FrameStatus::kError, text(scanner.refusal()), client_.loop.pushes);
    return true;
  }
  if (scanned != Scanner::Result::kComplete || scanner.size() != raw.size() || !is_forwarded(static_cast<Query>(raw[0]))) {
    client_.refuse(Refusal::kBadFrame);
    return false;
  }
  const auto query = static_cast<Query>(raw[0]);
  Fields fields(raw.substr(1));
  if (client_.loop.relay != nullptr) {
    relay_forward(id, query, raw);
    return true;
  }
  if (const auto why = lacks_room(*client_.keyspace, client_.loop.limits, query, fields, raw.size()); why != Refusal::kNone) {
    trunk_->push(id, FrameStatus::kError, text(why), client_.loop.pushes);
    return true;
  }
  do {
    requests_.writer = {trunk_.get()};
    if (query == Query::kGet) {
      client_.keyspace->fetch(fields.bytes(), *trunk_, id, client_.loop.pushes);
      return true;
    }
    if (query == Query::kSet) {
      Fields again = fields;
      const auto key = again.bytes();
      client_.keyspace->set_for(key, again.bytes(), *trunk_, id, client_.loop.pushes, wakes, requests_.writer);
    } else {
      Output reply;
      requests_.execute(query, fields, reply, wakes);
      if (requests_.is_listing()) {
        client_.stopped_early = true;
        return false;
      }
      if (const Refusal why = std::exchange(client_.refusal, Refusal::kNone); why != Refusal::kNone) {
        trunk_->push(id, FrameStatus::kError, text(why), client_.loop.pushes);  // it is for the one who has asked
      } else if (!requests_.writer.blocked) {
        trunk_->push(id, FrameStatus::kOk, unheld(reply), client_.loop.pushes);
      }
    }
    if (requests_.writer.blocked && requests_.wait_for_holders(keys_written(query, fields))) {
      return false;
    }
  } while (requests_.writer.blocked);
  requests_.forget_holders();
  return true;
}

void TrunkRequests::relay_forward(std::uint32_t id, Query query, std::string_view raw) {
  Relay& relay = *client_.loop.relay;
  const Asker asker{relay_client_, id};
  Fields fields(raw.substr(1));
  switch (query) {
    case Query::kGet: {
      const KeyView key(fields.bytes());
      if (relay_client_->unconfirmed == 0 && client_.keyspace->has_all({&key, 1})) {
        relay.used_cache();
        client_.keyspace->fetch(key.text, *trunk_, id, client_.loop.pushes);
      } else {
        relay.fetch(key.text, raw, asker);
      }
      break;
    }
    case Query::kSet: {
      const auto key = fields.bytes();
      relay.set(key, fields.bytes(), raw, asker);
      break;
    }
    case Query::kAdd: {
      const auto key = fields.bytes();
      relay.add(key, fields.number<std::int64_t>(), raw, asker);
      break;
    }
    case Query::kAppend:
    case Query::kMultiSet:
    case Query::kQueuePush:
      relay.write(raw, asker);
      break;
    default:
      relay.forward(raw, asker);
  }
}

void TrunkRequests::end() {
  requests_.forget_holders();
  if (relay_client_ && relay_client_->owner == client_.owner) {
    relay_client_->owner = nullptr;
  }
}

void attach_trunk(ClientContext& client, bool in_session, std::uint32_t id, std::string_view bytes, Output& reply,
                  Wakes& wakes) {
  LoopContext& loop = client.loop;
  Payload payload(bytes, loop.limits);
  const auto token = payload.number<std::uint64_t>();
  const auto received = payload.number<std::uint64_t>();
  const auto grace_ms = std::int64_t{payload.number<std::uint32_t>()};
  const auto flags = payload.flags(kLeaf | kAgain);
  const auto name = payload.key();
  payload.end();
  if (!payload.ok()) {
    client.refuse(payload.refusal());
    return;
  }
  if (in_session || grace_ms < kMinGraceMs || grace_ms > kMaxGraceMs) {
    answer(reply, id, FrameStatus::kError, in_session ? "a connection with a session cannot be a trunk" : "not a grace");
    return;
  }
  if (loop.relay != nullptr && !loop.relay->takes_proxies()) {
    answer(reply, id, FrameStatus::kError,
           loop.relay->is_lost() ? "it has lost its own root" : "it is a leaf, which takes no proxies");
    return;
  }
  auto trunk = client.keyspace->trunks.find(token);
  const bool fresh = !trunk;
  if (!trunk && (flags & kAgain) != 0) {
    answer(reply, id, FrameStatus::kError, "this trunk is not known here (any more)");
    return;
  }
  if (!trunk) {
    Trunk::Traits traits{token, std::string(name), (flags & kLeaf) != 0, grace_ms};
    trunk = std::make_shared<Trunk>(client.keyspace, std::move(traits), loop.limits.output_bytes);
  }
  const std::lock_guard working(trunk->working);
  std::uint64_t resent = 0;
  auto subscriber = std::make_shared<Subscriber>(loop.loop, client.owner, 0);
  if (!trunk->attach(subscriber, client.peer, received, resent, wakes)) {
    answer(reply, id, FrameStatus::kError, "what this trunk has missed is not known any more");
    return;
  }
  if (fresh) {
    client.keyspace->trunks.add(token, trunk);
  }
  std::string text;
  add_number(text, trunk->run);
  add_number(text, resent);
  answer(reply, id, FrameStatus::kOk, text);
  trunk->take(subscriber.get(), reply);
  if (loop.relay != nullptr) {
    if (!trunk->relay_client) {
      trunk->relay_client = std::make_shared<RelayClient>();
    }
    trunk->relay_client->owner = client.owner;
    trunk->relay_client->trunk = trunk;
    loop.relay->child_attached(token);
  }
  client.next = std::make_unique<TrunkProtocol>(client, trunk, std::move(subscriber));
}

TrunkProtocol::TrunkProtocol(ClientContext& client, std::shared_ptr<Trunk> trunk, std::shared_ptr<Subscriber> subscriber)
    : client_(client),
      trunk_(std::move(trunk)),
      subscriber_(std::move(subscriber)),
      lease_{trunk_->traits().grace_ms, client.loop.running_ms()},
      requests_(client, trunk_, trunk_->relay_client) {}

bool TrunkProtocol::pushed(Output& reply) {
  if (!trunk_) {
    return false;
  }
  const Trunk::Taken taken = trunk_->take(subscriber_.get(), reply);
  if (taken.overflown) {
    client_.refuse(Refusal::kUnreadReplies);
  }
  return taken.any || taken.overflown;
}

std::shared_ptr<Trunk> TrunkProtocol::end() {
  requests_.end();
  if (!trunk_) {
    return nullptr;
  }
  subscriber_->owner = nullptr;
  const auto trunk = std::move(trunk_);
  // It answers from what it holds for a while after it was last heard of, and those behind it for as long again.
  const std::int64_t held_until_ms = lease_.heard_ms + trunk->hold_ms() + 1;
  return trunk->detach(subscriber_.get(), client_.loop.running_ms(), held_until_ms) ? trunk : nullptr;
}

std::size_t TrunkProtocol::run(std::string_view bytes, Output& reply, Wakes& wakes) {
  if (bytes.size() < kLengthSize) {
    return 0;
  }
  Fields fields(bytes);
  const auto size = fields.number<std::uint32_t>();
  // what it has may be as long as a request may: that is judged with the request, which is one client's and not the proxy's
  if (size < kHeadSize || size > client_.loop.limits.request_bytes + kRoom) {
    return client_.refuse(size < kHeadSize ? Refusal::kBadFrame : Refusal::kRequestTooLong);
  }
  if (bytes.size() < kLengthSize + size) {
    return 0;
  }
  const auto id = fields.number<std::uint32_t>();
  const auto operation = static_cast<Operation>(fields.number<std::uint8_t>());
  const std::string_view payload = bytes.substr(kLengthSize + kHeadSize, size - kHeadSize);
  if (!client_.suspended && queued_.empty() && asks_root(operation, payload) && client_.holds_back(bytes.size() == kLengthSize + size)) {
    return 0;
  }
  client_.loop.counters.frames.add(1);
  if (operation <= Operation::kAttach || operation > Operation::kLeave) {
    return client_.refuse(Refusal::kBadFrame);
  }
  if (client_.loop.relay != nullptr) {
    client_.loop.relay->check();
    if (client_.is_refused()) {
      return 0;  // the root does not vouch for this proxy, which has cut off those behind it
    }
  }
  client_.loop.counters.trunk[trunk_index(operation)].add(1);
  const std::lock_guard working(trunk_->working);
  if (!trunk_->attached_by(subscriber_.get())) {
    return client_.refuse(Refusal::kTrunkSilent);  // another connection has taken over, and has been sent this again
  }
  if (!is_counted(operation)) {
    say(operation, payload, reply, wakes);
  } else if (client_.suspended || !queued_.empty()) {
    queued_.emplace_back(bytes.substr(0, kLengthSize + size));
    queued_bytes_ += size;
    if (queued_bytes_ > 2 * client_.loop.limits.request_bytes + kRoom) {
      return client_.refuse(Refusal::kRequestTooLong);
    }
    if (operation == Operation::kRecalled) {  // what is waited for may be this; to run it again later does no harm
      requests_.run(operation, id, payload, wakes);
    }
  } else if (requests_.run(operation, id, payload, wakes)) {
    ++trunk_->run;
    tell_trunks(wakes, client_.loop.pushes);  // of what this has changed, before what the next one says
  } else if (!client_.is_refused()) {
    queued_.emplace_back(bytes.substr(0, kLengthSize + size));
    queued_bytes_ += size;
  }
  return !client_.is_refused() ? kLengthSize + size : 0;
}

void TrunkProtocol::drain(Wakes& wakes) {
  while (!queued_.empty() && !client_.suspended && !client_.is_refused()) {
    const std::lock_guard working(trunk_->working);
    if (!trunk_->attached_by(subscriber_.get())) {
      client_.refuse(Refusal::kTrunkSilent);
      return;
    }
    const std::string& frame = queued_.front();
    Fields fields(frame);
    fields.number<std::uint32_t>();
    const auto id = fields.number<std::uint32_t>();
    const auto operation = static_cast<Operation>(fields.number<std::uint8_t>());
    if (!requests_.run(operation, id, std::string_view(frame).substr(kLengthSize + kHeadSize), wakes)) {
      return;
    }
    ++trunk_->run;
    tell_trunks(wakes, client_.loop.pushes);
    queued_bytes_ -= frame.size() - kLengthSize;
    queued_.pop_front();
  }
}

void TrunkProtocol::say(Operation operation, std::string_view bytes, Output& reply, Wakes& wakes) {
  if (operation == Operation::kLeave) {
    for (const std::string& key : trunk_->end(wakes)) {
      if (client_.loop.relay != nullptr) {
        client_.loop.relay->unwant(key);
      }
    }
    return;
  }
  if (operation == Operation::kReport && bytes.size() > kMostReport) {
    client_.refuse(Refusal::kRequestTooLong);
    return;
  }
  if (operation == Operation::kReport) {
    trunk_->report(bytes);
    return;
  }
  Payload payload(bytes, client_.loop.limits);
  const auto received = payload.number<std::uint64_t>();
  payload.end();
  if (!payload.ok() || !trunk_->acknowledge(received)) {
    client_.refuse(Refusal::kBadFrame);
    return;
  }
  // not when this turn began: the answer is good for a while from now
  lease_.heard_ms = monotonic_ms() - client_.loop.stalled_ms;
  trunk_->take(subscriber_.get(), reply);  // the answer vouches for what the proxy holds: what is recalled by now comes before it
  std::string text;
  add_number(text, trunk_->run);
  answer(reply, 0, FrameStatus::kReceived, text);
}

}  // namespace rdzv
