// The requests of the reference store, one by one.
#include <algorithm>

#include "reference_store.hpp"
#include "requests.hpp"

namespace rdzv::test {

void ReferenceStore::execute(std::size_t id, const Parsed& request) {
  ClientState& client = clients_.at(id);
  run(client, request);
  deliver(client);  // its own waits: before the replies to its later requests
}

void ReferenceStore::run(ClientState& client, const Parsed& request) {
  const auto& texts = request.texts;
  const auto value = [&](const std::string& key) {
    const auto found = values_.find(key);
    return found == values_.end() ? std::string() : found->second;
  };
  switch (request.type) {
    case 0: client.refusal = Refusal::kUnknownRequest; break;  // VALIDATE, again
    case 1: write(texts[0], texts[1]); break;
    case 2: compare_set(client, texts); break;
    case 3: client.heard.bytes(wire::text(value(texts[0]))); break;
    case 4:  // ADD
      if (const auto sum = add(texts[0], request.number)) {
        client.heard.bytes(wire::i64(*sum));
      } else {
        client.refusal = Refusal::kNotANumber;
      }
      break;
    case 5: {  // CHECK
      const bool all = std::all_of(texts.begin(), texts.end(), [&](const std::string& key) { return present(key); });
      client.heard.bytes(all ? wire::ready() : wire::not_ready());
      break;
    }
    case 6: wait(client, texts); break;
    case 7: client.heard.bytes(wire::u64(values_.size())); break;
    case 8: client.heard.bytes(wire::u64(values_.erase(texts[0]))); break;
    case 9: write(texts[0], value(texts[0]) + texts[1]); break;
    case 10:  // MULTI_GET
      for (const std::string& key : texts) {
        client.heard.bytes(wire::text(value(key)));
      }
      break;
    case 11:  // MULTI_SET
      for (std::size_t i = 0; i < texts.size(); i += 2) {
        write(texts[i], texts[i + 1]);
      }
      break;
    case 12:  // CANCEL_WAIT
      cancel(client);
      client.heard.bytes(wire::wait_canceled());
      break;
    case 13: client.heard.bytes(wire::raw(static_cast<std::uint32_t>(request.number))); break;
    case 14:  // QUEUE_PUSH
      queues_[texts[0]].push_back(texts[1]);
      wake_one(texts[0]);
      break;
    case 15: {  // QUEUE_POP
      const auto found = queues_.find(texts[0]);
      client.heard.bytes(wire::u64(found == queues_.end() ? 0 : found->second.size()));
      if (found != queues_.end()) {
        client.heard.bytes(wire::text(found->second.front()));
        found->second.pop_front();
        if (found->second.empty()) {
          queues_.erase(found);
        }
      }
      break;
    }
    case 16: client.heard.bytes(wire::u64(queues_.count(texts[0]) > 0 ? queues_[texts[0]].size() : 0)); break;
    case 17: {  // LIST_KEYS
      std::set<std::string> keys;
      for (const auto& [key, each] : values_) {
        keys.insert(key);
      }
      client.heard.keys(keys);
      break;
    }
    case 18: barrier(client, texts[0], request.number); break;
  }
}

}  // namespace rdzv::test
