// One keyspace, many threads: sums add up, requests on many keys are seen as a whole or not at all, nobody deadlocks.
#include <atomic>

#include "check.hpp"
#include "random.hpp"
#include "store_kit.hpp"
#include "threads.hpp"

namespace rdzv::test {

namespace {

constexpr std::size_t kThreads = 6;

std::vector<std::string> split_texts(const std::string& bytes) {
  std::vector<std::string> texts;
  for (std::size_t at = 0; at + 8 <= bytes.size();) {
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data() + at, 8);
    texts.push_back(bytes.substr(at + 8, size));
    at += 8 + size;
  }
  return texts;
}

}  // namespace

TEST(sums_of_many_threads_add_up) {
  constexpr int kAdds = 4000;
  Keyspace store("sums");
  run_threads(kThreads, [&](std::size_t) {
    Wakes wakes;
    for (int i = 0; i < kAdds; ++i) {
      CHECK(store.add("all", 1, wakes).has_value());
      CHECK(store.add("key-" + std::to_string(i % 7), 3, wakes).has_value());
    }
  });
  Wakes wakes;
  CHECK_EQUAL(store.add("all", 0, wakes).value(), static_cast<std::int64_t>(kThreads * kAdds));
  std::int64_t sum = 0;
  for (int i = 0; i < 7; ++i) {
    sum += store.add("key-" + std::to_string(i), 0, wakes).value();
  }
  CHECK_EQUAL(sum, static_cast<std::int64_t>(3 * kThreads * kAdds));
}

TEST(compare_set_has_one_winner) {
  constexpr int kEach = 600;
  Keyspace store("compare");
  Wakes none;
  store.set("k", "0", none);
  std::atomic<int> tries{0};
  run_threads(kThreads, [&](std::size_t) {
    Wakes wakes;
    for (int won = 0; won < kEach;) {
      Output value, reply;
      store.get("k", value);
      const std::string before = drain(value).substr(8);
      // The thread's own mark: an equal count of somebody else's is no success.
      const std::string mine = std::to_string(std::stoi(before) + 1) + "/" + std::to_string(tries.fetch_add(1));
      store.compare_set("k", before, mine, reply, wakes);
      won += drain(reply).substr(8) == mine ? 1 : 0;
    }
  });
  Output value;
  store.get("k", value);
  CHECK_EQUAL(std::stoi(drain(value).substr(8)), static_cast<int>(kThreads) * kEach);
}

TEST(appends_are_not_lost_and_not_mixed) {
  constexpr int kEach = 1500;
  Keyspace store("append");
  run_threads(kThreads, [&](std::size_t thread) {
    Wakes wakes;
    const std::string word = "<" + std::string(20, static_cast<char>('a' + thread)) + ">";
    for (int i = 0; i < kEach; ++i) {
      store.append("k", word, wakes);
      if (i % 100 == 0) {
        Output reply;
        store.get("k", reply);  // from some length on it is shared
        CHECK_EQUAL((drain(reply).size() - 8) % word.size(), 0u);
      }
    }
  });
  Output reply;
  store.get("k", reply);
  const std::string all = drain(reply).substr(8);
  REQUIRE_EQUAL(all.size(), kThreads * kEach * 22);
  for (std::size_t at = 0; at < all.size(); at += 22) {
    CHECK(all.substr(at, 22) == "<" + std::string(20, all[at + 1]) + ">");
  }
}

TEST(a_multi_set_is_seen_as_a_whole_or_not_at_all) {
  constexpr int kEach = 1200;
  Keyspace store("whole");
  const Names names{"a", "b", "c", "d", "e", "f", "g", "h"};
  const auto keys = Kit::views(names);
  const auto write = [&](const std::string& value) {
    std::vector<Keyspace::Pair> pairs;
    for (const KeyView& key : keys) {
      pairs.push_back({key, value});
    }
    Wakes wakes;
    store.multi_set(pairs, wakes);
  };
  write("first");
  run_threads(kThreads, [&](std::size_t thread) {
    for (int i = 0; i < kEach; ++i) {
      if (thread < 2) {
        write(std::to_string(thread) + "-" + std::to_string(i) + std::string(i % 5 == 0 ? 20'000 : 1, 'x'));
        continue;
      }
      Output reply;
      CHECK(store.multi_get(keys, reply, ~std::size_t{0}));
      const auto values = split_texts(drain(reply));
      REQUIRE_EQUAL(values.size(), names.size());
      for (const std::string& value : values) {
        REQUIRE(value == values[0]);
      }
    }
  });
}

TEST(requests_on_many_keys_do_not_deadlock) {
  constexpr int kEach = 500;
  Keyspace store("locks");
  Names names;
  for (int i = 0; i < 40; ++i) {
    names.push_back("key-" + std::to_string(i));
  }
  run_threads(kThreads, [&](std::size_t thread) {
    Random random(thread);
    Peer peer;
    Wakes wakes;
    for (int i = 0; i < kEach; ++i) {
      Names some;
      for (std::size_t left = 1 + random.below(12); left > 0; --left) {
        some.push_back(random.pick(names));
      }
      const auto keys = Kit::views(some);
      std::vector<Keyspace::Pair> pairs;
      for (const KeyView& key : keys) {
        pairs.push_back({key, "value"});
      }
      Output reply;
      switch (random.below(9)) {
        case 0: store.multi_set(pairs, wakes); break;
        case 1: store.multi_get(keys, reply, ~std::size_t{0}); break;
        case 2: store.has_all(keys); break;
        case 3:
          for (KeyList list; !store.list_some(list);) {
          }
          break;
        case 4: CHECK(store.size() <= 40); break;
        case 5: store.wipe(); break;
        case 6: store.summary(3, 3); break;
        case 7: store.remove(some[0]); break;
        case 8:
          if (const auto waiter = store.wait(keys, {0, nullptr, &peer, i})) {
            store.cancel(*waiter);
          }
          break;
      }
      drain(reply);
    }
  });
  const auto summary = store.summary(10, 10);
  CHECK_EQUAL(summary.waited_keys, 0u);
  CHECK_EQUAL(summary.keys, static_cast<std::size_t>(store.size()));
}

TEST(large_values_are_shared_between_threads) {
  Keyspace store("shared");
  Wakes none;
  store.set("k", std::string(50'000, 'a'), none);
  const std::uint64_t detached_before = SharedText::detached_bytes();
  run_threads(kThreads, [&](std::size_t thread) {
    Wakes wakes;
    std::vector<Output> replies(20);  // kept for a while, so that several versions are alive
    for (int i = 0; i < 1000; ++i) {
      if (thread == 0) {
        store.set("k", std::string(20'000 + static_cast<std::size_t>(i), static_cast<char>('a' + i % 26)), wakes);
        continue;
      }
      Output& reply = replies[static_cast<std::size_t>(i) % replies.size()];
      const std::string bytes = drain(reply);
      if (!bytes.empty()) {
        REQUIRE(bytes.find_first_not_of(bytes[8], 8) == std::string::npos);  // all of one version
      }
      store.get("k", reply);
    }
  });
  CHECK_EQUAL(SharedText::detached_bytes(), detached_before);
}

}  // namespace rdzv::test
