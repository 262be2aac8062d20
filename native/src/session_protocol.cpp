#include "rdzv/session_protocol.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rdzv/framing.hpp"
#include "rdzv/store_protocol.hpp"
#include "rdzv/trunk_protocol.hpp"

namespace rdzv {

namespace {

constexpr std::uint8_t kEphemeral = 1, kGuarded = 2;

std::optional<RunSpace::Guard> guard(std::uint8_t flags, Payload& payload) {
  if ((flags & kGuarded) == 0) {
    return std::nullopt;
  }
  const auto key = payload.name();
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

// What the token is to have been proved for, where one is needed.
Purpose purpose_of(Operation operation) {
  switch (operation) {
    case Operation::kStatistics: return Purpose::kStatus;
    case Operation::kEnter: return Purpose::kStore;  // which never gets here: nobody enters a keyspace by a token
    case Operation::kAttach: return Purpose::kTrunk;
    default: return Purpose::kSession;
  }
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

std::size_t SessionProtocol::run(std::string_view bytes, Output& reply, Wakes& wakes) {
  if (bytes.size() < kLengthSize) {
    return 0;
  }
  Fields fields(bytes);
  const auto size = fields.number<std::uint32_t>();
  if (size < kHeadSize || size > kMaxFrame) {
    return client_.refuse(Refusal::kBadFrame);
  }
  if (size > client_.loop.limits.request_bytes) {
    return client_.refuse(Refusal::kRequestTooLong);
  }
  if (bytes.size() < kLengthSize + size) {
    return 0;
  }
  client_.loop.counters.frames.add(1);
  const auto id = fields.number<std::uint32_t>();
  const auto operation = static_cast<Operation>(fields.number<std::uint8_t>());
  const std::string_view payload = bytes.substr(kLengthSize + kHeadSize, size - kHeadSize);
  if (!client_.may(purpose_of(operation))) {
    answer(reply, id, FrameStatus::kError, "the token was proved for something else on this connection");
    return kLengthSize + size;
  }
  switch (operation) {
    case Operation::kStatistics:
      answer(reply, id, FrameStatus::kOk, client_.loop.server.statistics());
      client_.took_long = true;
      break;
    case Operation::kEnter:
      if (session_) {
        answer(reply, id, FrameStatus::kError, "a connection with a session cannot enter a keyspace");
      } else if (auto keyspace = client_.loop.server.keyspace(payload)) {
        client_.enter(std::move(keyspace));
        client_.next = torch_protocol(client_);
        answer(reply, id, FrameStatus::kOk, {});
      } else {
        answer(reply, id, FrameStatus::kError, "there is no keyspace '" + std::string(payload) + "'");
      }
      break;
    case Operation::kOpen:
    case Operation::kPut:
    case Operation::kList:
    case Operation::kWatch:
    case Operation::kUnwatch:
    case Operation::kDelete:
    case Operation::kKeepAlive:
      client_.loop.counters.coordination[coordination_index(operation)].add(1);
      coordinate(operation, id, payload, reply);
      break;
    case Operation::kAttach:
      client_.loop.counters.trunk[trunk_index(operation)].add(1);
      attach_trunk(client_, session_ != nullptr, id, payload, reply, wakes);
      break;
    default:
      answer(reply, id, FrameStatus::kError, "unknown operation " + std::to_string(static_cast<int>(operation)));
  }
  return client_.is_refused() ? 0 : kLengthSize + size;
}

bool SessionProtocol::in_session(std::uint32_t id, const Payload& payload, Output& reply) {
  if (!payload.ok()) {
    client_.refuse(payload.refusal());
    return false;
  }
  if (!session_) {
    answer(reply, id, FrameStatus::kError, "no session is open on this connection");
    return false;
  }
  if (!payload.names_are_utf8()) {  // which no node could read, and each would have to leave out
    pushed(reply);
    answer(reply, id, FrameStatus::kError, "a name in it is not UTF-8");
    return false;
  }
  return true;
}

bool SessionProtocol::pushed(Output& reply) {
  if (!session_) {
    return false;
  }
  Subscriber::Taken taken;
  try {
    taken = session_->subscriber->take(reply);
  } catch (const std::bad_alloc&) {  // also when another client is being served, which is not to suffer for it
    reply.clear();
    client_.refuse(Refusal::kOutOfMemory);
    return true;
  }
  client_.loop.counters.pushes.add(taken.frames);
  client_.loop.counters.events.add(taken.events);
  if (taken.overflown) {
    client_.refuse(Refusal::kUnreadReplies);
  }
  return taken.frames > 0 || taken.overflown;
}

std::shared_ptr<Trunk> SessionProtocol::end() {
  if (const auto ending = std::move(session_)) {
    ending->end(client_.loop.pushes);
  }
  return nullptr;
}

void SessionProtocol::deny(Output& reply, std::uint32_t id, Refusal why, std::string_view of_what, std::uint64_t most,
                           std::string_view limit) {
  client_.loop.counters.refused[static_cast<std::size_t>(why)].add(1);
  pushed(reply);
  answer(reply, id, FrameStatus::kError,
         std::string(text(why)) + ": there may be " + std::to_string(most) + " " + std::string(of_what) + " (" +
             std::string(limit) + " of the server)");
}

void SessionProtocol::answer_session(std::uint32_t id, std::string_view payload, Output& reply) {
  pushed(reply);
  answer(reply, id, FrameStatus::kOk, payload);
}

void SessionProtocol::coordinate(Operation operation, std::uint32_t id, std::string_view bytes, Output& reply) {
  Payload payload(bytes, client_.loop.limits);
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

void SessionProtocol::open_session(std::uint32_t id, Payload& payload, Output& reply) {
  const auto ttl_ms = payload.number<std::uint32_t>();
  const auto run = payload.name();
  payload.end();
  Spaces& spaces = client_.loop.server.spaces();
  if (!payload.ok()) {
    client_.refuse(payload.refusal());
  } else if (session_) {
    answer(reply, id, FrameStatus::kError, "a session is open already on this connection");
  } else if (!payload.names_are_utf8()) {
    answer(reply, id, FrameStatus::kError, "the name of the run is not UTF-8");
  } else if (ttl_ms < kMinTtlMs || ttl_ms > kMaxTtlMs) {
    answer(reply, id, FrameStatus::kError,
           "a time to live of " + std::to_string(ttl_ms) + " ms is not from " + std::to_string(kMinTtlMs) + " to " +
               std::to_string(kMaxTtlMs) + " ms");
  } else if (!spaces.serves(run)) {
    answer(reply, id, FrameStatus::kOtherRun, spaces.only());
  } else if (client_.only_run() != nullptr && run != *client_.only_run()) {
    answer(reply, id, FrameStatus::kError, "the token was proved for another run");
  } else {
    auto told = std::make_shared<Subscriber>(client_.loop.loop, client_.owner, client_.loop.limits.output_bytes);
    const Limits& limits = client_.loop.limits;
    auto session = std::make_unique<Session>(spaces, run, client_.token_name(), limits, std::move(told), ttl_ms,
                                             client_.loop.running_ms());
    switch (session->entry) {
      case Spaces::Entry::kForeign: return answer(reply, id, FrameStatus::kForeignRun, {});
      case Spaces::Entry::kTooMany:
        return deny(reply, id, Refusal::kTooManySessions, "in all", limits.sessions, "sessions");
      case Spaces::Entry::kTooManyOfRun:
        return deny(reply, id, Refusal::kTooManySessions, "of this run", limits.run_sessions, "run_sessions");
      case Spaces::Entry::kEntered: break;
    }
    session_ = std::move(session);
    std::string text;
    add_number(text, session_->id);
    add_number(text, session_->space->revision());
    add_text(text, client_.peer.host());
    text.push_back(spaces.only().empty() ? 1 : 0);
    answer(reply, id, FrameStatus::kOk, text);
  }
}

void SessionProtocol::put(std::uint32_t id, Payload& payload, std::size_t size, Output& reply) {
  const auto flags = payload.flags(kEphemeral | kGuarded);
  const auto only_if = guard(flags, payload);
  const auto pairs = items<RunSpace::Pair>(payload, [&] {
    const auto key = payload.name();
    return RunSpace::Pair{key, payload.value()};
  });
  if (!in_session(id, payload, reply)) {
    return;
  }
  const Limits& limits = client_.loop.limits;
  switch (session_->space->lacks_room(pairs, size, limits)) {
    case RunSpace::Lacks::kBytes:
      return deny(reply, id, Refusal::kRunFull, "bytes for the keys of this run", limits.run_bytes, "run_bytes");
    case RunSpace::Lacks::kBytesOfAll:
      return deny(reply, id, Refusal::kStoreFull, "bytes for the keys of all runs", limits.stored_bytes, "stored_bytes");
    case RunSpace::Lacks::kKeys:
      return deny(reply, id, Refusal::kRunFull, "keys in this run", limits.run_keys, "run_keys");
    case RunSpace::Lacks::kNothing: break;
  }
  const bool ephemeral = (flags & kEphemeral) != 0;
  const auto done = session_->space->put(session_->member, ephemeral, only_if, pairs, client_.loop.pushes);
  answer_session(id, begin_done(done), reply);
}

void SessionProtocol::remove(std::uint32_t id, Payload& payload, Output& reply) {
  const auto only_if = guard(payload.flags(kGuarded), payload);
  const auto keys = items<std::string_view>(payload, [&] { return payload.name(); });
  if (!in_session(id, payload, reply)) {
    return;
  }
  const auto done = session_->space->remove(only_if, keys, client_.loop.pushes);
  std::string text = begin_done(done);
  if (done.done) {
    add_number(text, done.existed);
  }
  answer_session(id, text, reply);
}

void SessionProtocol::list(std::uint32_t id, Payload& payload, Output& reply) {
  const auto prefix = payload.name();
  payload.end();
  if (!in_session(id, payload, reply)) {
    return;
  }
  std::string keys;
  std::uint32_t count = 0;
  const auto limit = std::min<std::uint64_t>(client_.loop.limits.output_bytes, UINT32_MAX / 2);
  const auto revision = session_->space->list(prefix, [&](const Event& event) {
    ++count;
    if (keys.size() <= limit) {
      add_text(keys, event.key);
      add_number(keys, event.revision);
      add_text(keys, event.value);
    }
  });
  if (keys.size() > limit) {
    client_.refuse(Refusal::kUnreadReplies);
    return;
  }
  std::string text;
  add_number(text, revision);
  add_number(text, count);
  answer_session(id, text.append(keys), reply);
  client_.took_long = true;
}

void SessionProtocol::watch(std::uint32_t id, Payload& payload, Output& reply) {
  const auto number = payload.number<std::uint32_t>();
  const auto prefix = payload.name();
  const auto after = payload.number<std::uint64_t>();
  payload.end();
  if (!in_session(id, payload, reply)) {
    return;
  }
  pushed(reply);  // what the answer comes before is of this watch only
  const Limits& limits = client_.loop.limits;
  switch (session_->space->watch(session_->member, number, prefix, after, limits, client_.loop.pushes)) {
    case RunSpace::Watched::kWatched:
      answer(reply, id, FrameStatus::kOk, {});
      pushed(reply);
      client_.took_long = true;
      break;
    case RunSpace::Watched::kTaken:
      answer(reply, id, FrameStatus::kError, "there is a watch " + std::to_string(number) + " already");
      break;
    case RunSpace::Watched::kCompacted:
      answer(reply, id, FrameStatus::kCompacted,
             "what was deleted since revision " + std::to_string(after) + " is not known any more: list the keys");
      break;
    case RunSpace::Watched::kTooMany:
      deny(reply, id, Refusal::kTooManyWatches, "of one session", limits.watches, "watches");
      break;
    case RunSpace::Watched::kTooManyOfRun:
      deny(reply, id, Refusal::kTooManyWatches, "of this run", limits.run_watches, "run_watches");
      break;
  }
}

void SessionProtocol::unwatch(std::uint32_t id, Payload& payload, Output& reply) {
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
