// The requests of a proxy's clients: what is answered here, and what goes up.
#include <vector>

#include "rdzv/conversation.hpp"

namespace rdzv {

namespace {

std::vector<KeyView> keys_of(Fields fields) {
  std::vector<KeyView> keys;
  for (auto count = fields.number<std::uint64_t>(); count > 0; --count) {
    keys.emplace_back(fields.bytes());
  }
  return keys;
}

}  // namespace

const std::shared_ptr<RelayClient>& Conversation::relay_client() {
  if (!relay_client_) {
    relay_client_ = std::make_shared<RelayClient>(RelayClient{owner_});
  }
  return relay_client_;
}

bool Conversation::answers_here(Query query, Fields fields) const {
  switch (query) {
    case Query::kPing:
    case Query::kCancelWait:
    case Query::kWait:
      return true;
    case Query::kGet: {
      const KeyView key(fields.bytes());
      return keyspace_->has_all({&key, 1});
    }
    case Query::kCheck:
    case Query::kMultiGet:
      return keyspace_->has_all(keys_of(fields));
    default:
      return false;
  }
}

std::size_t Conversation::relayed(Query query, std::string_view raw, Output& reply, Wakes& wakes) {
  Relay& relay = *context_.relay;
  relay.check();
  if (relay.is_lost()) {
    refuse(Refusal::kRootLost);
  }
  if (refusal_ != Refusal::kNone) {
    return 0;
  }
  const Fields body(raw.substr(1));
  const bool here = answers_here(query, body);
  if (!relay.admits(relay_client(), here)) {
    suspended_ = true;
    return 0;  // it is looked at again when it is told to go on
  }
  context_.counters.requests[static_cast<std::size_t>(query)].add(1);
  const Asker asker{relay_client(), 0};
  Fields fields = body;
  switch (query) {
    case Query::kWait:
      relay_wait(keys_of(fields), reply);
      break;
    case Query::kBarrier: {
      const auto key = fields.bytes();
      relay_barrier(key, fields.number<std::int64_t>());
      break;
    }
    case Query::kSet: {
      const auto key = fields.bytes();
      relay.set(key, fields.bytes(), raw, asker);
      break;
    }
    case Query::kQueuePush: {
      relay.note_queue(fields.bytes());
      relay.write(raw, asker);
      break;
    }
    case Query::kAppend:
    case Query::kMultiSet:
      relay.write(raw, asker);
      break;
    case Query::kValidate:
      execute(query, fields, reply, wakes);
      break;
    default:
      if (here) {
        if (query != Query::kPing && query != Query::kCancelWait) {
          relay.used_cache();
        }
        execute(query, fields, reply, wakes);
        break;
      }
      suspended_ = true;
      if (query == Query::kGet) {
        relay.fetch(fields.bytes(), raw, asker);
      } else if (query == Query::kAdd) {
        const auto key = fields.bytes();
        relay.add(key, fields.number<std::int64_t>(), raw, asker);
      } else {
        if (query == Query::kQueuePop || query == Query::kQueueLen) {
          relay.note_queue(fields.bytes());
        }
        relay.forward(raw, asker);
      }
  }
  return refusal_ == Refusal::kNone ? raw.size() : 0;
}

void Conversation::relay_wait(Keyspace::Keys keys, Output& reply) {
  if (!may_wait(keys.size())) {
    return;
  }
  auto waiter = keyspace_->wait(keys, owner());
  if (!waiter) {
    context_.relay->used_cache();
    reply.number(kStopWaiting);
    if (keys.size() == 1) {
      context_.relay->want(keys[0].text, true, nullptr);
    }
    return;
  }
  std::vector<std::string> missing;
  for (const WaitNode& node : waiter->nodes) {
    missing.emplace_back(node.entry->key());
  }
  keep(waiter);
  for (const std::string& key : missing) {
    context_.relay->want(key, keys.size() == 1, waiter);
  }
}

void Conversation::relay_barrier(std::string_view key, std::int64_t world_size) {
  if (!may_wait(1)) {
    return;
  }
  auto waiter = std::make_shared<Waiter>(owner(), 0);  // in no list: it is told when the root's answer has come
  keep(waiter);
  context_.relay->arrive(key, world_size, 1, std::move(waiter), {relay_client(), 0});
}

bool Conversation::relay_forward(std::uint32_t id, Query query, std::string_view raw) {
  Relay& relay = *context_.relay;
  const Asker asker{relay_client(), id};
  Fields fields(raw.substr(1));
  switch (query) {
    case Query::kGet: {
      const KeyView key(fields.bytes());
      if (relay_client()->unconfirmed == 0 && keyspace_->has_all({&key, 1})) {
        relay.used_cache();
        keyspace_->fetch(key.text, *trunk_, id, context_.pushes);
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
  return true;
}

}  // namespace rdzv
