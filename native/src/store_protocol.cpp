#include "rdzv/store_protocol.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace rdzv {

std::size_t StoreProtocol::run(std::string_view bytes, Output& reply, Wakes& wakes) {
  switch (scanner_.advance(bytes, client_.loop.limits)) {
    case Scanner::Result::kIncomplete:
      return 0;
    case Scanner::Result::kRefused:
      return client_.refuse(scanner_.refusal());
    case Scanner::Result::kComplete:
      break;
  }
  const auto query = static_cast<Query>(bytes[0]);
  if (asks(query) && client_.holds_back(scanner_.size() == bytes.size())) {
    return 0;
  }
  const std::size_t size = scanner_.size();
  scanner_.reset();
  return serve(query, bytes.substr(0, size), reply, wakes);
}

std::size_t StoreProtocol::serve(Query query, std::string_view raw, Output& reply, Wakes& wakes) {
  const Fields fields(raw.substr(1));
  if (const auto why = lacks_room(*client_.keyspace, client_.loop.limits, query, fields, raw.size()); why != Refusal::kNone) {
    return client_.refuse(why);
  }
  const std::size_t before = wakes.size();
  do {
    requests_.writer = {};
    requests_.execute(query, fields, reply, wakes);
    if (requests_.is_listing()) {
      client_.stopped_early = true;
      return 0;  // it goes on when others have had their turn
    }
    if (requests_.writer.blocked && requests_.wait_for_holders(keys_written(query, fields))) {
      return 0;  // it is run again when they have given up the value
    }
  } while (requests_.writer.blocked);
  requests_.forget_holders();
  client_.loop.counters.requests[static_cast<std::size_t>(query)].add(1);
  if (wakes.size() > before) {
    answer_own(before, reply, wakes);
  }
  return raw.size();
}

void StoreProtocol::answer_own(std::size_t first, Output& reply, Wakes& wakes) {
  const auto own = [&](const std::shared_ptr<Waiter>& waiter) {
    return waiter->loop == client_.loop.loop && waiter->owner == client_.owner && woken(*waiter, reply);
  };
  wakes.erase(std::remove_if(wakes.begin() + static_cast<std::ptrdiff_t>(first), wakes.end(), own), wakes.end());
}

bool RelayedProtocol::answers_here(Query query, Fields fields) const {
  switch (query) {
    case Query::kPing:
    case Query::kCancelWait:
    case Query::kWait:
      return true;
    case Query::kGet: {
      const KeyView key(fields.bytes());
      return client_.keyspace->has_all({&key, 1});
    }
    case Query::kCheck:
    case Query::kMultiGet:
      return client_.keyspace->has_all(keys_listed(fields));
    default:
      return false;
  }
}

std::size_t RelayedProtocol::serve(Query query, std::string_view raw, Output& reply, Wakes& wakes) {
  Relay& relay = *client_.loop.relay;
  relay.check();
  if (relay.is_lost()) {
    client_.refuse(Refusal::kRootLost);
  }
  if (client_.is_refused()) {
    return 0;
  }
  const Fields body(raw.substr(1));
  const bool here = answers_here(query, body);
  if (!relay.admits(relay_client_, here)) {
    client_.suspended = true;
    return 0;  // it is looked at again when it is told to go on
  }
  client_.loop.counters.requests[static_cast<std::size_t>(query)].add(1);
  const Asker asker{relay_client_, 0};
  Fields fields = body;
  switch (query) {
    case Query::kWait:
      wait(keys_listed(fields), reply);
      break;
    case Query::kBarrier: {
      const auto key = fields.bytes();
      barrier(key, fields.number<std::int64_t>());
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
      requests_.execute(query, fields, reply, wakes);
      break;
    default:
      if (here) {
        if (query != Query::kPing && query != Query::kCancelWait) {
          relay.used_cache();
        }
        requests_.execute(query, fields, reply, wakes);
        break;
      }
      client_.suspended = true;
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
  return client_.is_refused() ? 0 : raw.size();
}

void RelayedProtocol::wait(Keyspace::Keys keys, Output& reply) {
  if (!requests_.waits.may_wait(keys.size())) {
    return;
  }
  auto waiter = client_.keyspace->wait(keys, client_.wait_owner());
  if (!waiter) {
    client_.loop.relay->used_cache();
    reply.number(kStopWaiting);
    if (keys.size() == 1) {
      client_.loop.relay->want(keys[0].text, true, nullptr);
    }
    return;
  }
  std::vector<std::string> missing;
  for (const WaitNode& node : waiter->nodes) {
    missing.emplace_back(node.entry->key());
  }
  requests_.waits.keep(waiter);
  for (const std::string& key : missing) {
    client_.loop.relay->want(key, keys.size() == 1, waiter);
  }
}

void RelayedProtocol::barrier(std::string_view key, std::int64_t world_size) {
  if (!requests_.waits.may_wait(1)) {
    return;
  }
  auto waiter = std::make_shared<Waiter>(client_.wait_owner(), 0);  // in no list: it is told when the root's answer has come
  requests_.waits.keep(waiter);
  client_.loop.relay->arrive(key, world_size, 1, std::move(waiter), {relay_client_, 0});
}

std::unique_ptr<Protocol> torch_protocol(ClientContext& client) {
  if (client.loop.relay != nullptr) {
    return std::make_unique<RelayedProtocol>(client);
  }
  return std::make_unique<StoreProtocol>(client);
}

}  // namespace rdzv
