// The requests of torch's wire format, one by one.
#include <array>
#include <span>
#include <vector>

#include "rdzv/conversation.hpp"

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

void Conversation::list_keys(Output& reply) {
  if (!listing_) {
    listing_ = std::make_unique<KeyList>();
  }
  const bool all = keyspace_->list_some(*listing_);
  took_long_ = true;
  if (listing_->bytes() > context_.limits.output_bytes) {
    refuse(Refusal::kUnreadReplies);
  } else if (!all) {
    return;
  } else {
    listing_->finish(reply);
  }
  listing_.reset();
}

void Conversation::execute(Query query, Fields fields, Output& reply, Wakes& wakes) {
  const auto keys = [&] {
    const auto count = static_cast<std::size_t>(fields.number<std::uint64_t>());
    return Items<KeyView>(count, [&] { return KeyView(fields.bytes()); });
  };
  switch (query) {
    case Query::kValidate:  // is for the greeting alone
      refuse(Refusal::kUnknownRequest);
      break;
    case Query::kPing: {
      const auto nonce = fields.number<std::uint32_t>();
      peer_.pid.store(nonce, std::memory_order_relaxed);
      reply.number(nonce);
      break;
    }
    case Query::kSet: {
      const auto key = fields.bytes();
      keyspace_->set(key, fields.bytes(), wakes, &writer_);
      break;
    }
    case Query::kAppend: {
      const auto key = fields.bytes();
      keyspace_->append(key, fields.bytes(), wakes, &writer_);
      break;
    }
    case Query::kCompareSet: {
      const auto key = fields.bytes();
      const auto expected = fields.bytes();
      keyspace_->compare_set(key, expected, fields.bytes(), reply, wakes, &writer_);
      break;
    }
    case Query::kGet:
      keyspace_->get(fields.bytes(), reply);
      break;
    case Query::kAdd: {
      const auto key = fields.bytes();
      if (const auto sum = keyspace_->add(key, fields.number<std::int64_t>(), wakes, &writer_);
          sum && !writer_.blocked) {
        reply.number(*sum);
      } else if (!writer_.blocked) {
        refuse(Refusal::kNotANumber);
      }
      break;
    }
    case Query::kCheck:
      reply.number(keyspace_->has_all(keys().all()) ? kReady : kNotReady);
      break;
    case Query::kWait:
      wait(keys().all(), reply);
      break;
    case Query::kCancelWait:
      cancel_waits();
      reply.number(kWaitCanceled);
      break;
    case Query::kGetNumKeys:
      reply.number(keyspace_->size());
      break;
    case Query::kDeleteKey:
      if (const bool removed = keyspace_->remove(fields.bytes(), &writer_); !writer_.blocked) {
        reply.number<std::int64_t>(removed ? 1 : 0);
      }
      break;
    case Query::kMultiGet:
      if (!keyspace_->multi_get(keys().all(), reply, context_.limits.output_bytes)) {
        refuse(Refusal::kUnreadReplies);
      }
      break;
    case Query::kMultiSet: {
      const auto count = static_cast<std::size_t>(fields.number<std::uint64_t>());
      const Items<Keyspace::Pair> pairs(count, [&] {
        const KeyView key(fields.bytes());
        return Keyspace::Pair{key, fields.bytes()};
      });
      keyspace_->multi_set(pairs.all(), wakes, &writer_);
      break;
    }
    case Query::kQueuePush: {
      const auto key = fields.bytes();
      keyspace_->queue_push(key, fields.bytes(), wakes);
      break;
    }
    case Query::kQueuePop:
      keyspace_->queue_pop(fields.bytes(), reply);
      break;
    case Query::kQueueLen:
      reply.number(keyspace_->queue_size(fields.bytes()));
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

}  // namespace rdzv
