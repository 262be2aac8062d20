// A proxy's requests: what it could not answer by itself. In a proxy: those of proxies behind it, which it relays.
#include <array>
#include <utility>

#include "frames.hpp"
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

bool Conversation::run(Operation operation, std::uint32_t id, std::string_view bytes, Wakes& wakes) {
  Payload payload(bytes, context_.limits);
  if (context_.relay != nullptr && operation != Operation::kRecalled && operation != Operation::kArrive &&
      !context_.relay->admits(relay_client(), false)) {
    suspended_ = true;
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
        refuse(Refusal::kBadFrame);
        return false;
      }
      if (payload.refusal() == Refusal::kKeyTooLong) {  // by a limit that is not the proxy's: its clients are to hear of it
        trunk_->push(id, FrameStatus::kError, text(payload.refusal()), context_.pushes);
        return true;
      }
      if (payload.ok()) {
        WaitOwner who = waits_for(id, true);
        who.quiet = (flags & kAhead) != 0;
        const auto waiter = keyspace_->follow(key, who, *trunk_, context_.pushes);
        if (context_.relay != nullptr) {
          context_.relay->want(key, (flags & kReads) != 0, waiter);
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
      if (payload.ok() && context_.relay != nullptr) {
        context_.relay->give_back(key);
      } else if (payload.ok()) {
        keyspace_->give_back(key, wakes);
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
    refuse(payload.refusal());
  }
  return payload.ok();
}

WaitOwner Conversation::waits_for(std::uint32_t id, bool sticky) {
  return {context_.loop, nullptr, &trunk_->peer(), context_.now_ms, context_.turn, trunk_, id, sticky};
}

void Conversation::unfollow(std::uint32_t id) {
  if (const auto waiter = trunk_->forget(id)) {
    keyspace_->cancel(*waiter);
    if (context_.relay != nullptr) {
      context_.relay->unwant(waiter->key);
    }
  }
}

bool Conversation::arrive(std::uint32_t id, Payload& payload, Wakes& wakes) {
  const auto key = payload.key();
  const auto world_size = payload.number<std::int64_t>();
  const auto count = payload.number<std::int64_t>();
  payload.end();
  if (payload.refusal() == Refusal::kKeyTooLong) {
    trunk_->push(id, FrameStatus::kError, text(payload.refusal()), context_.pushes);
    return true;
  }
  if (!payload.ok() || trunk_->waits(id)) {
    refuse(payload.ok() ? Refusal::kBadFrame : payload.refusal());
    return false;
  }
  if (context_.relay != nullptr) {
    context_.relay->arrive(key, world_size, count, nullptr, {relay_client(), id});
    return true;
  }
  Keyspace::Arrival arrival;
  do {
    writer_ = {trunk_.get()};
    arrival = keyspace_->barrier(key, world_size, waits_for(id, false), wakes, count, &writer_);
    if (writer_.blocked && wait_for_holders({KeyView(key)})) {
      return false;
    }
  } while (writer_.blocked);
  holders_.reset();
  if (!arrival.number) {
    trunk_->push(id, FrameStatus::kError, text(Refusal::kNotANumber), context_.pushes);
  } else if (!arrival.waiter) {
    trunk_->push(id, FrameStatus::kOk, {}, context_.pushes);
  } else {
    trunk_->keep(arrival.waiter);
    if (arrival.waiter->missing.load(std::memory_order_acquire) == 0) {  // the last one has come on another loop meanwhile
      trunk_->woken(*arrival.waiter, context_.pushes);
    }
  }
  return true;
}

bool Conversation::forward(std::uint32_t id, std::string_view raw, Wakes& wakes) {
  Scanner scanner;
  const auto scanned = raw.empty() ? Scanner::Result::kIncomplete : scanner.advance(raw, context_.limits);
  if (scanned == Scanner::Result::kRefused) {  // for instance by limits that are not the proxy's: its client is to hear of it
    trunk_->push(id, FrameStatus::kError, text(scanner.refusal()), context_.pushes);
    return true;
  }
  if (scanned != Scanner::Result::kComplete || scanner.size() != raw.size() || !is_forwarded(static_cast<Query>(raw[0]))) {
    refuse(Refusal::kBadFrame);
    return false;
  }
  const auto query = static_cast<Query>(raw[0]);
  Fields fields(raw.substr(1));
  if (context_.relay != nullptr) {
    return relay_forward(id, query, raw);
  }
  if (writes(query) && keyspace_->full(raw.size(), context_.limits.stored_bytes)) {
    trunk_->push(id, FrameStatus::kError, text(Refusal::kStoreFull), context_.pushes);
    return true;
  }
  do {
    writer_ = {trunk_.get()};
    if (query == Query::kGet) {
      keyspace_->fetch(fields.bytes(), *trunk_, id, context_.pushes);
      return true;
    }
    if (query == Query::kSet) {
      Fields again = fields;
      const auto key = again.bytes();
      keyspace_->set_for(key, again.bytes(), *trunk_, id, context_.pushes, wakes, writer_);
    } else {
      Output reply;
      execute(query, fields, reply, wakes);
      if (listing_) {
        stopped_early_ = true;
        return false;
      }
      if (const Refusal why = std::exchange(refusal_, Refusal::kNone); why != Refusal::kNone) {
        trunk_->push(id, FrameStatus::kError, text(why), context_.pushes);  // it is for the one who has asked
      } else if (!writer_.blocked) {
        trunk_->push(id, FrameStatus::kOk, unheld(reply), context_.pushes);
      }
    }
    if (writer_.blocked && wait_for_holders(keys_written(query, fields))) {
      return false;
    }
  } while (writer_.blocked);
  holders_.reset();
  return true;
}

}  // namespace rdzv
