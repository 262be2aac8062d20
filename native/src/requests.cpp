#include "rdzv/requests.hpp"

#include <array>
#include <span>
#include <string>
#include <utility>

#include "rdzv/relay.hpp"

namespace rdzv {

std::vector<KeyView> keys_written(Query query, Fields fields) {
  const std::uint64_t count = query == Query::kMultiSet ? fields.number<std::uint64_t>() : 1;
  std::vector<KeyView> keys;
  for (std::uint64_t i = 0; i < count; ++i) {
    keys.emplace_back(fields.bytes());
    if (query == Query::kMultiSet) {
      fields.bytes();
    }
  }
  return keys;
}

std::vector<KeyView> keys_listed(Fields fields) {
  std::vector<KeyView> keys;
  for (auto left = fields.number<std::uint64_t>(); left > 0; --left) {
    keys.emplace_back(fields.bytes());
  }
  return keys;
}

namespace {

// The items of a request with a count: few of them without allocating.
template <class Item>
class Items {
 public:
  template <class Read>
  Items(std::size_t count, Read read) {
    Item* next = few_.data();
    if (count > few_.size()) {
      many_.resize(count);
      next = many_.data();
    }
    all_ = {next, count};
    for (std::size_t i = 0; i < count; ++i) {
      next[i] = read();
    }
  }
  Items(const Items&) = delete;
  Items& operator=(const Items&) = delete;

  std::span<const Item> all() const { return all_; }

 private:
  std::array<Item, 4> few_;
  std::vector<Item> many_;
  std::span<const Item> all_;
};

}  // namespace

bool writes(Query query) {
  switch (query) {
    case Query::kSet:
    case Query::kAppend:
    case Query::kCompareSet:
    case Query::kAdd:
    case Query::kMultiSet:
    case Query::kQueuePush:
    case Query::kBarrier:
      return true;
    default:
      return false;
  }
}

Refusal lacks_room(Keyspace& keyspace, const Limits& limits, Query query, Fields fields, std::size_t size) {
  const bool waits = query == Query::kWait;
  if (!waits && !writes(query)) {
    return Refusal::kNone;
  }
  const bool full = keyspace.full(size, limits.stored_bytes);
  if (full && !waits) {
    return Refusal::kStoreFull;
  }
  const bool many = waits || query == Query::kMultiSet;
  if (!full && !keyspace.may_lack_room(limits.stored_keys, many ? Fields(fields).number<std::uint64_t>() : 1)) {
    return Refusal::kNone;
  }
  const auto named = waits ? keys_listed(fields) : keys_written(query, fields);
  if (full) {
    return keyspace.has_all(named) ? Refusal::kNone : Refusal::kStoreFull;
  }
  return keyspace.lacks_room(named, limits.stored_keys) ? Refusal::kTooManyStoredKeys : Refusal::kNone;
}

bool Requests::wait_for_holders(const std::vector<KeyView>& keys) {
  // the marks of an earlier attempt go when the new ones are there
  if (holders_) {
    holders_->owner = nullptr;
  }
  holders_ = client_.keyspace->ask_back(keys, client_.wait_owner(), client_.loop.pushes);
  client_.suspended = holders_ != nullptr;
  return client_.suspended;
}

void Requests::forget_holders() {
  if (holders_) {
    holders_->owner = nullptr;
    holders_.reset();
  }
}

bool Requests::woken(const Waiter& waiter, Output& reply) {
  if (&waiter == holders_.get()) {
    client_.go_on();
    return true;
  }
  return waits.woken(waiter, reply);
}

void Requests::wait(Keyspace::Keys keys, Output& reply) {
  if (!waits.may_wait(keys.size())) {
    return;
  }
  if (auto waiter = client_.keyspace->wait(keys, client_.wait_owner())) {
    waits.keep(std::move(waiter));
  } else {
    reply.number(kStopWaiting);
  }
}

void Requests::barrier(std::string_view key, std::int64_t world_size, Output& reply, Wakes& wakes) {
  if (!waits.may_wait(1)) {
    return;
  }
  auto arrival = client_.keyspace->barrier(key, world_size, client_.wait_owner(), wakes, 1, &writer);
  if (writer.blocked) {
    return;
  }
  if (!arrival.number) {
    client_.refuse(Refusal::kNotANumber);
  } else if (arrival.waiter) {
    waits.keep(std::move(arrival.waiter));
  } else {
    reply.number(kStopWaiting);
  }
}

void Requests::list_keys(Output& reply) {
  if (!listing_) {
    listing_ = std::make_unique<KeyList>();
  }
  const bool all = client_.keyspace->list_some(*listing_);
  client_.took_long = true;
  if (listing_->bytes() > client_.loop.limits.output_bytes) {
    client_.refuse(Refusal::kUnreadReplies);
  } else if (!all) {
    return;
  } else {
    listing_->finish(reply);
  }
  listing_.reset();
}

void Requests::execute(Query query, Fields fields, Output& reply, Wakes& wakes) {
  const auto keys = [&] {
    const auto count = static_cast<std::size_t>(fields.number<std::uint64_t>());
    return Items<KeyView>(count, [&] { return KeyView(fields.bytes()); });
  };
  switch (query) {
    case Query::kValidate:  // is for the greeting alone
      client_.refuse(Refusal::kUnknownRequest);
      break;
    case Query::kPing: {
      const auto nonce = fields.number<std::uint32_t>();
      client_.peer.pid.store(nonce, std::memory_order_relaxed);
      reply.number(nonce);
      break;
    }
    case Query::kSet: {
      const auto key = fields.bytes();
      client_.keyspace->set(key, fields.bytes(), wakes, &writer);
      break;
    }
    case Query::kAppend: {
      const auto key = fields.bytes();
      client_.keyspace->append(key, fields.bytes(), wakes, &writer);
      break;
    }
    case Query::kCompareSet: {
      const auto key = fields.bytes();
      const auto expected = fields.bytes();
      client_.keyspace->compare_set(key, expected, fields.bytes(), reply, wakes, &writer);
      break;
    }
    case Query::kGet:
      client_.keyspace->get(fields.bytes(), reply);
      break;
    case Query::kAdd: {
      const auto key = fields.bytes();
      if (const auto sum = client_.keyspace->add(key, fields.number<std::int64_t>(), wakes, &writer);
          sum && !writer.blocked) {
        reply.number(*sum);
      } else if (!writer.blocked) {
        client_.refuse(Refusal::kNotANumber);
      }
      break;
    }
    case Query::kCheck:
      reply.number(client_.keyspace->has_all(keys().all()) ? kReady : kNotReady);
      break;
    case Query::kWait:
      wait(keys().all(), reply);
      break;
    case Query::kCancelWait:
      waits.cancel();
      reply.number(kWaitCanceled);
      break;
    case Query::kGetNumKeys:
      reply.number(client_.keyspace->size());
      break;
    case Query::kDeleteKey:
      if (const bool removed = client_.keyspace->remove(fields.bytes(), &writer); !writer.blocked) {
        reply.number<std::int64_t>(removed ? 1 : 0);
      }
      break;
    case Query::kMultiGet:
      if (!client_.keyspace->multi_get(keys().all(), reply, client_.loop.limits.output_bytes)) {
        client_.refuse(Refusal::kUnreadReplies);
      }
      break;
    case Query::kMultiSet: {
      const auto count = static_cast<std::size_t>(fields.number<std::uint64_t>());
      const Items<Keyspace::Pair> pairs(count, [&] {
        const KeyView key(fields.bytes());
        return Keyspace::Pair{key, fields.bytes()};
      });
      client_.keyspace->multi_set(pairs.all(), wakes, &writer);
      break;
    }
    case Query::kQueuePush: {
      const auto key = fields.bytes();
      client_.keyspace->queue_push(key, fields.bytes(), wakes);
      break;
    }
    case Query::kQueuePop:
      client_.keyspace->queue_pop(fields.bytes(), reply);
      break;
    case Query::kQueueLen:
      reply.number(client_.keyspace->queue_size(fields.bytes()));
      break;
    case Query::kListKeys:
      list_keys(reply);
      break;
    case Query::kBarrier: {
      const auto key = fields.bytes();
      barrier(key, fields.number<std::int64_t>(), reply, wakes);
      break;
    }
  }
}

bool Waits::may_wait(std::size_t keys) {
  // One request may name this many keys; several that wait at the same time may not name more.
  if (keys_ + keys > client_.loop.limits.keys_per_request) {
    client_.refuse(Refusal::kTooManyWaits);
    return false;
  }
  return true;
}

void Waits::keep(std::shared_ptr<Waiter> waiter) {
  keys_ += waiter->nodes.size();
  waiter->position = waits_.size();
  waits_.push_back(std::move(waiter));
}

bool Waits::woken(const Waiter& waiter, Output& reply) {
  const std::size_t position = waiter.position;
  if (position >= waits_.size() || waits_[position].get() != &waiter) {
    return false;
  }
  keys_ -= waiter.nodes.size();
  waits_.back()->position = position;
  std::swap(waits_[position], waits_.back());
  waits_.pop_back();
  reply.number(kStopWaiting);
  return true;
}

void Waits::cancel() {
  std::vector<std::string> unwanted;
  for (const auto& waiter : waits_) {
    if (client_.loop.relay != nullptr) {
      for (const WaitNode& node : waiter->nodes) {
        if (node.entry != nullptr) {
          unwanted.emplace_back(node.entry->key());
        }
      }
    }
    client_.keyspace->cancel(*waiter);
    waiter->owner = nullptr;
  }
  waits_.clear();
  for (const std::string& key : unwanted) {
    client_.loop.relay->unwant(key);
  }
  keys_ = 0;
}

}  // namespace rdzv
