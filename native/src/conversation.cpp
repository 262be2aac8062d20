#include "rdzv/conversation.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rdzv {

std::size_t Conversation::refuse(Refusal why) {
  refusal_ = why;
  return 0;
}

bool Conversation::holds_back(bool whole) {
  alone_ = whole && first_;
  held_back_ = questions_ == Questions::kLater || (questions_ == Questions::kIfAlone && !alone_);
  stopped_early_ |= held_back_;
  return held_back_;
}

void Conversation::enter(std::shared_ptr<Keyspace> keyspace) {
  if (keyspace_) {
    keyspace_->connections.fetch_sub(1, std::memory_order_relaxed);
  }
  keyspace_ = std::move(keyspace);
  keyspace_->connections.fetch_add(1, std::memory_order_relaxed);
}

std::size_t Conversation::feed(std::string_view bytes, Output& reply, Wakes& wakes, Questions questions) {
  std::size_t used = 0;
  questions_ = questions;
  stopped_early_ = took_long_ = held_back_ = false;
  drain(wakes);
  while (used < bytes.size() && refusal_ == Refusal::kNone && reads()) {
    if (reply.size() >= kHighWater || std::exchange(took_long_, false) || keyspace_->pause.check()) {
      stopped_early_ = true;
      break;
    }
    const std::string_view rest = bytes.substr(used);
    first_ = used == 0;
    const std::size_t size = phase_ == Phase::kStore   ? request(rest, reply, wakes)
                             : phase_ == Phase::kTrunk  ? trunk_frame(rest, reply, wakes)
                             : phase_ == Phase::kFramed ? frame(rest, reply, wakes)
                                                        : greet(rest, reply);
    if (size == 0) {
      break;
    }
    used += size;
  }
  return used;
}

std::size_t Conversation::greet(std::string_view bytes, Output& reply) {
  // Judged byte by byte, so that whoever speaks another protocol is refused with the first wrong one.
  char expected[9];
  std::size_t size = 0;
  const bool framed = static_cast<unsigned char>(bytes[0]) == kFramingOpcode;
  if (framed) {
    expected[0] = bytes[0];
    std::memcpy(expected + 1, kFramingMagic.data(), 4);
    std::memcpy(expected + 5, &kFramingVersion, 4);
    size = 9;
  } else {
    expected[0] = static_cast<char>(Query::kValidate);
    std::memcpy(expected + 1, &kValidateMagic, 4);
    size = 5;
  }
  const std::size_t there = std::min(size, bytes.size());
  if (std::memcmp(bytes.data(), expected, there) != 0) {
    return refuse(Refusal::kNotAClient);
  }
  if (there < size) {
    return 0;
  }
  if (framed) {
    phase_ = Phase::kFramed;
    reply.raw(kFramingMagic);
    reply.number(kFramingVersion);
  } else {
    phase_ = Phase::kStore;
    context_.counters.requests[0].add(1);
  }
  return size;
}

std::size_t Conversation::request(std::string_view bytes, Output& reply, Wakes& wakes) {
  switch (scanner_.advance(bytes, context_.limits)) {
    case Scanner::Result::kIncomplete:
      return 0;
    case Scanner::Result::kRefused:
      return refuse(scanner_.refusal());
    case Scanner::Result::kComplete:
      break;
  }
  const auto query = static_cast<Query>(bytes[0]);
  if (asks(query) && holds_back(scanner_.size() == bytes.size())) {
    return 0;
  }
  const std::size_t size = scanner_.size();
  scanner_.reset();
  if (context_.relay != nullptr) {
    return relayed(query, bytes.substr(0, size), reply, wakes);
  }
  if (writes(query) && keyspace_->full(size, context_.limits.stored_bytes)) {
    return refuse(Refusal::kStoreFull);
  }
  const std::size_t before = wakes.size();
  do {
    writer_ = {};
    execute(query, Fields(bytes.substr(1)), reply, wakes);
    if (listing_) {
      stopped_early_ = true;
      return 0;  // it goes on when others have had their turn
    }
    if (writer_.blocked && wait_for_holders(keys_written(query, Fields(bytes.substr(1))))) {
      return 0;  // it is run again when they have given up the value
    }
  } while (writer_.blocked);
  holders_.reset();
  context_.counters.requests[static_cast<std::size_t>(query)].add(1);
  if (wakes.size() > before) {
    answer_own(before, reply, wakes);
  }
  return size;
}

void Conversation::answer_own(std::size_t first, Output& reply, Wakes& wakes) {
  const auto own = [&](const std::shared_ptr<Waiter>& waiter) {
    return waiter->loop == context_.loop && waiter->owner == owner_ && woken(*waiter, reply);
  };
  wakes.erase(std::remove_if(wakes.begin() + static_cast<std::ptrdiff_t>(first), wakes.end(), own), wakes.end());
}

bool Conversation::woken(const Waiter& waiter, Output& reply) {
  if (&waiter == holders_.get()) {
    go_on();
    return true;
  }
  const std::size_t position = waiter.position;
  if (position >= waits_.size() || waits_[position].get() != &waiter) {
    return false;
  }
  waited_keys_ -= waiter.nodes.size();
  waits_.back()->position = position;
  std::swap(waits_[position], waits_.back());
  waits_.pop_back();
  reply.number(kStopWaiting);
  return true;
}

bool Conversation::may_wait(std::size_t keys) {
  // One request may name this many keys; several that wait at the same time may not name more.
  if (waited_keys_ + keys > context_.limits.keys_per_request) {
    refuse(Refusal::kTooManyWaits);
    return false;
  }
  return true;
}

void Conversation::keep(std::shared_ptr<Waiter> waiter) {
  waited_keys_ += waiter->nodes.size();
  waiter->position = waits_.size();
  waits_.push_back(std::move(waiter));
}

void Conversation::wait(Keyspace::Keys keys, Output& reply) {
  if (!may_wait(keys.size())) {
    return;
  }
  if (auto waiter = keyspace_->wait(keys, owner())) {
    keep(std::move(waiter));
  } else {
    reply.number(kStopWaiting);
  }
}

void Conversation::barrier(std::string_view key, std::int64_t world_size, Output& reply, Wakes& wakes) {
  if (!may_wait(1)) {
    return;
  }
  auto arrival = keyspace_->barrier(key, world_size, owner(), wakes, 1, &writer_);
  if (writer_.blocked) {
    return;
  }
  if (!arrival.number) {
    refuse(Refusal::kNotANumber);
  } else if (arrival.waiter) {
    keep(std::move(arrival.waiter));
  } else {
    reply.number(kStopWaiting);
  }
}

bool Conversation::wait_for_holders(const std::vector<KeyView>& keys) {
  // the marks of an earlier attempt go when the new ones are there
  if (holders_) {
    holders_->owner = nullptr;
  }
  holders_ = keyspace_->ask_back(keys, owner(), context_.pushes);
  suspended_ = holders_ != nullptr;
  return suspended_;
}

void Conversation::cancel_waits() {
  std::vector<std::string> unwanted;
  for (const auto& waiter : waits_) {
    if (context_.relay != nullptr) {
      for (const WaitNode& node : waiter->nodes) {
        if (node.entry != nullptr) {
          unwanted.emplace_back(node.entry->key());
        }
      }
    }
    keyspace_->cancel(*waiter);
    waiter->owner = nullptr;
  }
  waits_.clear();
  for (const std::string& key : unwanted) {
    context_.relay->unwant(key);
  }
  waited_keys_ = 0;
}

}  // namespace rdzv
