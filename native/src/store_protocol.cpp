#include "rdzv/store_protocol.hpp"

#include <algorithm>

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

}  // namespace rdzv
