// The operations of coordination: sessions, keys with revisions, watches.
#include <algorithm>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "frames.hpp"

namespace rdzv {

namespace {

constexpr std::uint8_t kEphemeral = 1, kGuarded = 2;

std::optional<RunSpace::Guard> guard(std::uint8_t flags, Payload& payload) {
  if ((flags & kGuarded) == 0) {
    return std::nullopt;
  }
  const auto key = payload.key();
  return RunSpace::Guard{key, payload.number<std::uint64_t>()};
}

// Announced items are not allocated: the vector grows with those that are there.
template <class Item, class Read>
std::vector<Item> items(Payload& payload, Read read) {
  std::vector<Item> all;
  for (std::uint32_t left = payload.count(); left > 0 && payload.ok(); --left) {
    all.push_back(read());
  }
  payload.end();
  return all;
}

std::string begin_done(const RunSpace::Done& done) {
  std::string text;
  add_number(text, static_cast<std::uint8_t>(done.done));
  add_number(text, done.revision);
  if (!done.done) {
    add_text(text, done.value);
  }
  return text;
}

}  // namespace

bool Conversation::in_session(std::uint32_t id, const Payload& payload, Output& reply) {
  if (!payload.ok()) {
    refuse(payload.refusal());
    return false;
  }
  if (!session_) {
    answer(reply, id, FrameStatus::kError, "no session is open on this connection");
    return false;
  }
  return true;
}

bool Conversation::pushed(Output& reply) {
  if (trunk_) {
    const Trunk::Taken taken = trunk_->take(subscriber_.get(), reply);
    if (taken.overflown) {
      refuse(Refusal::kUnreadReplies);
    }
    return taken.any || taken.overflown;
  }
  if (!session_) {
    return false;
  }
  Subscriber::Taken taken;
  try {
    taken = session_->subscriber->take(reply);
  } catch (const std::bad_alloc&) {  // also when another client is being served, which is not to suffer for it
    reply.clear();
    refuse(Refusal::kOutOfMemory);
    return true;
  }
  context_.counters.pushes.add(taken.frames);
  context_.counters.events.add(taken.events);
  if (taken.overflown) {
    refuse(Refusal::kUnreadReplies);
  }
  return taken.frames > 0 || taken.overflown;
}

void Conversation::end_session() {
  if (const auto ending = std::move(session_)) {
    ending->end(context_.pushes);
  }
}

void Conversation::answer_session(std::uint32_t id, std::string_view payload, Output& reply) {
  pushed(reply);
  answer(reply, id, FrameStatus::kOk, payload);
}

void Conversation::coordinate(Operation operation, std::uint32_t id, std::string_view bytes, Output& reply) {
  Payload payload(bytes, context_.limits);
  switch (operation) {
    case Operation::kOpen: return open_session(id, payload, reply);
    case Operation::kPut: return put(id, payload, bytes.size(), reply);
    case Operation::kDelete: return remove(id, payload, reply);
    case Operation::kList: return list(id, payload, reply);
    case Operation::kWatch: return watch(id, payload, reply);
    case Operation::kUnwatch: return unwatch(id, payload, reply);
    default:  // keep alive: that it was heard is what counts
      payload.end();
      if (in_session(id, payload, reply)) {
        answer_session(id, {}, reply);
      }
  }
}

void Conversation::open_session(std::uint32_t id, Payload& payload, Output& reply) {
  const auto ttl_ms = payload.number<std::uint32_t>();
  const auto run = payload.key();
  payload.end();
  Spaces& spaces = context_.server.spaces();
  if (!payload.ok()) {
    refuse(payload.refusal());
  } else if (session_) {
    answer(reply, id, FrameStatus::kError, "a session is open already on this connection");
  } else if (ttl_ms < kMinTtlMs || ttl_ms > kMaxTtlMs) {
    answer(reply, id, FrameStatus::kError,
           "a time to live of " + std::to_string(ttl_ms) + " ms is not from " + std::to_string(kMinTtlMs) + " to " +
               std::to_string(kMaxTtlMs) + " ms");
  } else if (!spaces.serves(run)) {
    answer(reply, id, FrameStatus::kOtherRun, spaces.only());
  } else {
    auto told = std::make_shared<Subscriber>(context_.loop, owner_, context_.limits.output_bytes);
    session_ = std::make_unique<Session>(spaces, run, std::move(told), ttl_ms, context_.running_ms());
    std::string text;
    add_number(text, session_->id);
    add_number(text, session_->space->revision());
    add_text(text, peer_.host());
    text.push_back(spaces.only().empty() ? 1 : 0);
    answer(reply, id, FrameStatus::kOk, text);
  }
}

void Conversation::put(std::uint32_t id, Payload& payload, std::size_t size, Output& reply) {
  const auto flags = payload.flags(kEphemeral | kGuarded);
  const auto only_if = guard(flags, payload);
  const auto pairs = items<RunSpace::Pair>(payload, [&] {
    const auto key = payload.key();
    return RunSpace::Pair{key, payload.value()};
  });
  if (!in_session(id, payload, reply)) {
    return;
  }
  if (const auto most = std::min(context_.limits.stored_bytes, kMostRun); most > 0 && session_->space->full(size, most)) {
    pushed(reply);
    answer(reply, id, FrameStatus::kError,
           "store full: the keys of this run would need more than " + std::to_string(most) + " bytes");
    return;
  }
  const bool ephemeral = (flags & kEphemeral) != 0;
  const auto done = session_->space->put(session_->member, ephemeral, only_if, pairs, context_.pushes);
  answer_session(id, begin_done(done), reply);
}

void Conversation::remove(std::uint32_t id, Payload& payload, Output& reply) {
  const auto only_if = guard(payload.flags(kGuarded), payload);
  const auto keys = items<std::string_view>(payload, [&] { return payload.key(); });
  if (!in_session(id, payload, reply)) {
    return;
  }
  const auto done = session_->space->remove(only_if, keys, context_.pushes);
  std::string text = begin_done(done);
  if (done.done) {
    add_number(text, done.existed);
  }
  answer_session(id, text, reply);
}

void Conversation::list(std::uint32_t id, Payload& payload, Output& reply) {
  const auto prefix = payload.key();
  payload.end();
  if (!in_session(id, payload, reply)) {
    return;
  }
  std::string keys;
  std::uint32_t count = 0;
  const auto limit = std::min<std::uint64_t>(context_.limits.output_bytes, UINT32_MAX / 2);
  const auto revision = session_->space->list(prefix, [&](const Event& event) {
    ++count;
    if (keys.size() <= limit) {
      add_text(keys, event.key);
      add_number(keys, event.revision);
      add_text(keys, event.value);
    }
  });
  if (keys.size() > limit) {
    refuse(Refusal::kUnreadReplies);
    return;
  }
  std::string text;
  add_number(text, revision);
  add_number(text, count);
  answer_session(id, text.append(keys), reply);
  took_long_ = true;
}

void Conversation::watch(std::uint32_t id, Payload& payload, Output& reply) {
  const auto number = payload.number<std::uint32_t>();
  const auto prefix = payload.key();
  const auto after = payload.number<std::uint64_t>();
  payload.end();
  if (!in_session(id, payload, reply)) {
    return;
  }
  pushed(reply);  // what the answer comes before is of this watch only
  const auto most = static_cast<std::size_t>(context_.limits.keys_per_request);
  switch (session_->space->watch(session_->member, number, prefix, after, most, context_.pushes)) {
    case RunSpace::Watched::kWatched:
      answer(reply, id, FrameStatus::kOk, {});
      pushed(reply);
      took_long_ = true;
      break;
    case RunSpace::Watched::kTaken:
      answer(reply, id, FrameStatus::kError, "there is a watch " + std::to_string(number) + " already");
      break;
    case RunSpace::Watched::kCompacted:
      answer(reply, id, FrameStatus::kCompacted,
             "what was deleted since revision " + std::to_string(after) + " is not known any more: list the keys");
      break;
    case RunSpace::Watched::kTooMany: refuse(Refusal::kTooManyWaits); break;
  }
}

void Conversation::unwatch(std::uint32_t id, Payload& payload, Output& reply) {
  const auto number = payload.number<std::uint32_t>();
  payload.end();
  if (!in_session(id, payload, reply)) {
    return;
  }
  if (session_->space->unwatch(session_->member, number)) {
    answer_session(id, {}, reply);
  } else {
    answer(reply, id, FrameStatus::kError, "there is no watch " + std::to_string(number));
  }
}

}  // namespace rdzv
