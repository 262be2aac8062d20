// Waiting and waking from many threads: every waiter is woken exactly once, or was cancelled; no wake-up is lost.
#include <atomic>

#include "check.hpp"
#include "random.hpp"
#include "store_kit.hpp"
#include "threads.hpp"

namespace rdzv::test {

namespace {

std::string name(const char* prefix, std::size_t number) { return prefix + std::to_string(number); }

}  // namespace

TEST(every_wait_that_races_with_its_keys_is_woken_once) {
  // Two threads set the keys of each wait while it is being registered, which takes long enough to be met in the middle.
  constexpr std::size_t kWaits = 600, kKeys = 60;
  Keyspace store("race");
  Mail mail;
  Wakes waiters(kWaits);
  std::atomic<std::size_t> begun{0};
  Peer peer;
  const auto names_of = [](std::size_t wait) {
    Names names;
    for (std::size_t key = 0; key < kKeys; ++key) {
      names.push_back(std::to_string(wait) + "/" + std::to_string(key));
    }
    return names;
  };
  run_threads(3, [&](std::size_t thread) {
    Wakes wakes;
    for (std::size_t i = 0; i < kWaits; ++i) {
      const Names names = names_of(i);
      if (thread == 2) {
        const auto keys = Kit::views(names);
        begun = i + 1;
        waiters[i] = store.wait(keys, {0, nullptr, &peer, 0});
        continue;
      }
      while (begun <= i) {
        std::this_thread::yield();
      }
      for (std::size_t key = thread; key < kKeys; key += 2) {
        store.set(names[key], "v", wakes);
        mail.post(wakes);
      }
    }
  });
  std::size_t waited = 0;
  for (const auto& waiter : waiters) {
    if (waiter) {
      ++waited;
      CHECK_EQUAL(mail.times(waiter), 1);
      CHECK_EQUAL(waiter->missing.load(), 0u);
    }
  }
  CHECK(waited > 0);
  CHECK_EQUAL(store.summary(1, 1).waited_keys, 0u);
}

TEST(a_wait_is_woken_once_or_cancelled) {
  constexpr std::size_t kWaits = 3000;
  Keyspace store("cancel");
  Mail mail;
  std::vector<std::array<std::shared_ptr<Waiter>, 2>> waiters(kWaits);
  std::array<std::vector<bool>, 2> cancelled{std::vector<bool>(kWaits), std::vector<bool>(kWaits)};
  Peer peer;
  run_threads(4, [&](std::size_t thread) {
    Random random(thread);
    Wakes wakes;
    for (std::size_t i = 0; i < kWaits; ++i) {
      if (thread < 2) {
        const Names names{name("a", i), name("b", i)};
        waiters[i][thread] = store.wait(Kit::views(names), {0, nullptr, &peer, 0});
        // Some at once, some after their keys had time to come.
        const std::size_t late = i - std::min(i, random.below(3));
        if (random.one_in(2) && waiters[late][thread]) {
          store.cancel(*waiters[late][thread]);
          cancelled[thread][late] = true;
        }
      } else {
        store.set(name(thread == 2 ? "a" : "b", i), "v", wakes);
        mail.post(wakes);
      }
    }
  });
  for (std::size_t i = 0; i < kWaits; ++i) {
    for (const std::size_t thread : {0, 1}) {
      if (const auto& waiter = waiters[i][thread]) {
        const int times = mail.times(waiter);
        CHECK(cancelled[thread][i] ? times <= 1 : times == 1);
      }
    }
  }
  CHECK_EQUAL(store.summary(1, 1).waited_keys, 0u);
}

TEST(barriers_of_many_threads) {
  constexpr std::size_t kParties = 5, kRounds = 1500;
  Keyspace store("barrier");
  Mail mail;
  std::array<std::atomic<std::size_t>, kRounds> passed{};
  Peer peer;
  run_threads(kParties, [&](std::size_t) {
    for (std::size_t round = 0; round < kRounds; ++round) {
      Wakes wakes;
      const auto arrival = store.barrier(name("b", round), kParties, {0, nullptr, &peer, 0}, wakes);
      CHECK(arrival.number);
      mail.post(wakes);
      if (arrival.waiter) {
        mail.await(arrival.waiter);  // hangs if a wake-up is lost
        CHECK_EQUAL(mail.times(arrival.waiter), 1);
      }
      ++passed[round];
      // Nobody may be ahead of the one that is still in the round before.
      CHECK(round == 0 || passed[round - 1] >= 1);
      CHECK_EQUAL(store.add(name("b", round), 0, wakes).value(), static_cast<std::int64_t>(kParties));
    }
  });
}

TEST(a_queue_feeds_many_consumers_without_losing_an_item) {
  constexpr std::size_t kProducers = 2, kConsumers = 4, kItems = 3000;
  Keyspace store("queue");
  Mail mail;
  std::vector<std::atomic<int>> taken(kProducers * kItems);
  std::atomic<std::size_t> left{kProducers * kItems};
  Peer peer;
  run_threads(kProducers + kConsumers, [&](std::size_t thread) {
    Wakes wakes;
    if (thread < kProducers) {
      for (std::size_t i = 0; i < kItems; ++i) {
        store.queue_push("q", std::to_string(thread * kItems + i), wakes);
        mail.post(wakes);
      }
      return;
    }
    const Names names{"q"};
    while (left > 0) {
      if (const auto waiter = store.wait(Kit::views(names), {0, nullptr, &peer, 0})) {
        mail.await(waiter);
      }
      Output reply;
      store.queue_pop("q", reply);
      const std::string bytes = drain(reply);
      if (bytes.size() <= 8) {
        continue;  // another consumer was faster
      }
      const std::string item = bytes.substr(16);
      if (item != "end") {
        ++taken[static_cast<std::size_t>(std::stoul(item))];
        if (--left == 0) {
          for (std::size_t i = 0; i < kConsumers; ++i) {
            store.queue_push("q", "end", wakes);
          }
          mail.post(wakes);
        }
      }
    }
  });
  for (const auto& times : taken) {
    CHECK_EQUAL(times.load(), 1);
  }
}

TEST(waiters_that_come_and_go_while_keys_come_and_go) {
  constexpr int kEach = 3000;
  Keyspace store("churn");
  Mail mail;
  Peer peer;
  const Names names{"a", "b", "c"};
  run_threads(6, [&](std::size_t thread) {
    Random random(thread + 100);
    Wakes wakes, waiters;
    for (int i = 0; i < kEach; ++i) {
      const std::string& key = random.pick(names);
      switch (random.below(8)) {
        case 0: store.set(key, "1", wakes); break;
        case 1: store.remove(key); break;
        case 2: store.queue_push(key, "item", wakes); break;
        case 3: {
          Output reply;
          store.queue_pop(key, reply);
          drain(reply);
          break;
        }
        case 4: store.wipe(); break;
        case 5: store.summary(5, 5); break;
        case 6: {
          const auto arrival =
              store.barrier(key, 1 + static_cast<std::int64_t>(random.below(4)), {0, nullptr, &peer, i}, wakes);
          waiters.push_back(arrival.waiter);
          break;
        }
        case 7: waiters.push_back(store.wait(Kit::views({key, random.pick(names)}), {0, nullptr, &peer, i})); break;
      }
      mail.post(wakes);
      if (waiters.size() > 10) {
        for (const auto& waiter : waiters) {
          if (waiter) {
            store.cancel(*waiter);
            CHECK(mail.times(waiter) <= 1);
          }
        }
        waiters.clear();
      }
    }
    for (const auto& waiter : waiters) {
      if (waiter) {
        store.cancel(*waiter);
      }
    }
  });
  CHECK_EQUAL(store.summary(1, 1).waited_keys, 0u);
}

}  // namespace rdzv::test
