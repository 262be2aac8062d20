#include "reference_store.hpp"

#include <stdexcept>
#include <utility>

#include "requests.hpp"

namespace rdzv::test {

void ReferenceStore::greet(std::size_t client) { clients_[client] = {}; }

void ReferenceStore::wake(const WaitRef& wait) {
  wait->missing -= 1;
  wait->woken = wait->missing == 0;
}

void ReferenceStore::wake_one(const std::string& key) {
  auto& waiting = waiting_[key];
  for (bool woken = false; !woken && !waiting.empty(); waiting.pop_front()) {
    wake(waiting.front());
    woken = waiting.front()->woken;
  }
  if (waiting.empty()) {
    waiting_.erase(key);
  }
}

std::optional<std::int64_t> ReferenceStore::number(const std::string& key) const {
  try {
    return std::stoll(values_.at(key));
  } catch (const std::logic_error&) {  // not a number, out of range, not there
    return std::nullopt;
  }
}

void ReferenceStore::write(const std::string& key, std::string value) {
  values_[key] = std::move(value);
  for (const WaitRef& wait : std::exchange(waiting_[key], {})) {
    wake(wait);
  }
  waiting_.erase(key);
  const auto count = number(key);
  auto& standing = barriers_[key];
  for (auto each = standing.begin(); each != standing.end();) {
    if (count && *count >= each->threshold) {
      wake(each->wait);
      each = standing.erase(each);
    } else {
      ++each;
    }
  }
  if (standing.empty()) {
    barriers_.erase(key);
  }
}

std::optional<std::int64_t> ReferenceStore::add(const std::string& key, std::int64_t delta) {
  std::uint64_t sum = static_cast<std::uint64_t>(delta);
  if (values_.count(key) > 0) {
    const auto before = number(key);
    if (!before) {
      return std::nullopt;
    }
    sum += static_cast<std::uint64_t>(*before);
  }
  write(key, std::to_string(static_cast<std::int64_t>(sum)));
  return static_cast<std::int64_t>(sum);
}

bool ReferenceStore::may_wait(ClientState& client, std::size_t keys) {
  for (const WaitRef& wait : client.waits) {
    keys += wait->nodes;
  }
  if (keys > limits_.keys_per_request) {
    client.refusal = Refusal::kTooManyWaits;
    return false;
  }
  return true;
}

void ReferenceStore::wait(ClientState& client, const std::vector<std::string>& keys) {
  if (!may_wait(client, keys.size())) {
    return;
  }
  const auto wait = std::make_shared<Wait>();
  for (const std::string& key : keys) {
    if (!present(key)) {
      waiting_[key].push_back(wait);
      wait->nodes = ++wait->missing;
    }
  }
  if (wait->missing == 0) {
    client.heard.bytes(wire::stop_waiting());
  } else {
    client.waits.push_back(wait);
  }
}

void ReferenceStore::barrier(ClientState& client, const std::string& key, std::int64_t world_size) {
  if (!may_wait(client, 1)) {
    return;
  }
  const auto arrived = add(key, 1);
  if (!arrived) {
    client.refusal = Refusal::kNotANumber;
  } else if (*arrived >= world_size) {
    client.heard.bytes(wire::stop_waiting());
  } else {
    client.waits.push_back(std::make_shared<Wait>(Wait{1, 1, false}));
    barriers_[key].push_back({client.waits.back(), world_size});
  }
}

void ReferenceStore::compare_set(ClientState& client, const std::vector<std::string>& texts) {
  const auto found = values_.find(texts[0]);
  if (found == values_.end() ? texts[1].empty() : found->second == texts[1]) {
    write(texts[0], texts[2]);
    client.heard.bytes(wire::text(texts[2]));
  } else {
    client.heard.bytes(wire::text(found == values_.end() ? texts[1] : found->second));
  }
}

void ReferenceStore::cancel(ClientState& client) {
  for (const WaitRef& wait : client.waits) {
    for (auto each = waiting_.begin(); each != waiting_.end();) {
      each->second.remove(wait);
      each = each->second.empty() ? waiting_.erase(each) : std::next(each);
    }
    for (auto each = barriers_.begin(); each != barriers_.end();) {
      each->second.remove_if([&](const Standing& standing) { return standing.wait == wait; });
      each = each->second.empty() ? barriers_.erase(each) : std::next(each);
    }
  }
  client.waits.clear();
}

void ReferenceStore::leave(std::size_t client) {
  cancel(clients_.at(client));
  clients_.erase(client);
}

void ReferenceStore::wipe() {
  values_.clear();
  queues_.clear();
}

void ReferenceStore::deliver() {
  for (auto& [id, client] : clients_) {
    deliver(client);
  }
}

void ReferenceStore::deliver(ClientState& client) {
  for (auto each = client.waits.begin(); each != client.waits.end();) {
    if ((*each)->woken) {
      client.heard.bytes(wire::stop_waiting());
      each = client.waits.erase(each);
    } else {
      ++each;
    }
  }
}

Expected ReferenceStore::take(std::size_t client) { return std::exchange(clients_.at(client).heard, {}); }

std::size_t ReferenceStore::stored_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [key, value] : values_) {
    bytes += key.size() + value.size();
  }
  for (const auto& [key, queue] : queues_) {
    for (const std::string& value : queue) {
      bytes += value.size();
    }
  }
  return bytes;
}

std::set<std::string> ReferenceStore::waited_keys() const {
  std::set<std::string> keys;
  for (const auto& [key, waits] : waiting_) {
    keys.insert(key);
  }
  for (const auto& [key, standing] : barriers_) {
    keys.insert(key);
  }
  return keys;
}

}  // namespace rdzv::test
