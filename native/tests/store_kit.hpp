// A keyspace, and its operations with results that are easy to compare.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "rdzv/keyspace.hpp"
#include "requests.hpp"
#include "talk.hpp"

namespace rdzv::test {

using Names = std::vector<std::string>;

class Kit {
 public:
  Keyspace store{"kit"};
  Wakes wakes;
  Wakes waiters;  // all, as their owners have to keep them
  Peer peer;

  static std::vector<KeyView> views(const Names& names) {
    std::vector<KeyView> all;
    for (const std::string& name : names) {
      all.emplace_back(name);
    }
    return all;
  }

  void set(std::string_view key, std::string_view value) { store.set(key, value, wakes); }
  void append(std::string_view key, std::string_view value) { store.append(key, value, wakes); }
  void push(std::string_view key, std::string_view value) { store.queue_push(key, value, wakes); }
  std::optional<std::int64_t> add(std::string_view key, std::int64_t delta) { return store.add(key, delta, wakes); }
  // The bytes of the value, without their length.
  std::string get(std::string_view key) {
    Output reply;
    store.get(key, reply);
    return drain(reply).substr(8);
  }
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
    Output reply;
    store.compare_set(key, expected, desired, reply, wakes);
    return drain(reply).substr(8);
  }
  // As it is on the wire.
  std::string multi_get(const Names& keys) {
    Output reply;
    store.multi_get(views(keys), reply, ~std::size_t{0});
    return drain(reply);
  }
  // Keys and values in turn.
  void multi_set(const Names& texts) {
    std::vector<Keyspace::Pair> pairs;
    for (std::size_t i = 0; i < texts.size(); i += 2) {
      pairs.push_back({KeyView(texts[i]), texts[i + 1]});
    }
    store.multi_set(pairs, wakes);
  }
  bool check(const Names& keys) { return store.has_all(views(keys)); }
  // "2:one": the length before, and the value.
  std::string pop(std::string_view key) {
    Output reply;
    store.queue_pop(key, reply);
    const std::string bytes = drain(reply);
    std::string shown = std::to_string(static_cast<int>(bytes[0]));
    return bytes.size() > 8 ? shown + ":" + bytes.substr(16) : shown;
  }
  Names list() {
    Output reply;
    KeyList list;
    while (!store.list_some(list)) {
    }
    list.finish(reply);
    const std::string bytes = drain(reply);
    Names keys;
    for (std::size_t at = 8; at < bytes.size();) {
      std::uint64_t size = 0;
      std::memcpy(&size, bytes.data() + at, 8);
      keys.push_back(bytes.substr(at + 8, size));
      at += 8 + size;
    }
    std::sort(keys.begin(), keys.end());
    return keys;
  }
  std::shared_ptr<Waiter> wait(const Names& keys, std::int64_t since_ms = 0) {
    return keep(store.wait(views(keys), {0, this, &peer, since_ms}));
  }
  Keyspace::Arrival barrier(std::string_view key, std::int64_t world_size) {
    auto arrival = store.barrier(key, world_size, {0, this, &peer, 0}, wakes);
    keep(arrival.waiter);
    return arrival;
  }
  // Was `waiter` woken since the last look, and nobody else?
  bool woke(const std::shared_ptr<Waiter>& waiter) {
    const Wakes now = std::exchange(wakes, {});
    return now.size() == 1 && now[0] == waiter;
  }
  bool woke_nobody() { return std::exchange(wakes, {}).empty(); }
  Keyspace::Summary summary() { return store.summary(100, 10); }

 private:
  const std::shared_ptr<Waiter>& keep(const std::shared_ptr<Waiter>& waiter) { return waiters.emplace_back(waiter); }
};

}  // namespace rdzv::test
