#include "rdzv/trunk_requests.hpp"

#include <array>
#include <utility>

#include "rdzv/scanner.hpp"
#include "trunk_frames.hpp"

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

}  // namespace rdzv
