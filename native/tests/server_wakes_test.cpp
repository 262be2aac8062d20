// Clients on different event loops that wake each other.
#include "check.hpp"
#include "client.hpp"
#include "random.hpp"
#include "threads.hpp"

namespace rdzv::test {

namespace {

std::string name(const char* prefix, std::size_t number) { return prefix + std::to_string(number); }

std::vector<Client> clients_of(Host& host, std::size_t count) {
  std::vector<Client> clients;
  for (std::size_t i = 0; i < count; ++i) {
    clients.push_back(host.client());
    clients.back().ask(wire::ping(1), 4);  // it has its place now
  }
  return clients;
}

}  // namespace

TEST(a_key_wakes_clients_of_all_loops) {
  Host host(4);
  auto clients = clients_of(host, 40);
  for (int round = 0; round < 20; ++round) {
    const std::string key = "k" + std::to_string(round);
    for (Client& client : clients) {
      client.say(wire::wait({key}));
    }
    CHECK(eventually([&] { return host.server().statistics().find("\"waiters\":40") != std::string::npos; }));
    clients[static_cast<std::size_t>(round)].ask(wire::cancel_wait() + wire::set(key, "v"), 1);
    for (std::size_t i = 0; i < clients.size(); ++i) {
      if (i != static_cast<std::size_t>(round)) {
        CHECK_EQUAL(clients[i].hear(1), wire::stop_waiting());
      }
    }
  }
}

TEST(pairs_that_play_ping_pong_lose_no_wake) {
  constexpr std::size_t kPairs = 4, kRounds = 150;
  Host host(3);
  run_threads(2 * kPairs, [&](std::size_t player) {
    Client client = host.client();
    const std::size_t pair = player / 2;
    for (std::size_t round = 0; round < kRounds; ++round) {
      const std::string ball = name("ball-", pair) + name("-", round);
      if (round % 2 == player % 2) {
        client.say(wire::set(ball, "v"));
      } else {
        CHECK_EQUAL(client.ask(wire::wait({ball}), 1), wire::stop_waiting());
      }
    }
  });
}

TEST(barriers_over_all_loops) {
  constexpr std::size_t kParties = 8, kRounds = 60;
  Host host(3);
  run_threads(kParties, [&](std::size_t party) {
    Client client = host.client();
    for (std::size_t round = 0; round < kRounds; ++round) {
      CHECK_EQUAL(client.ask(wire::barrier(name("b", round), kParties), 1), wire::stop_waiting());
      // The same by hand, as torch's store based barrier has it.
      client.ask(wire::add(name("count", round), 1), 8);
      if (party == 0) {
        client.say(wire::set(name("go", round), "v"));
      }
      CHECK_EQUAL(client.ask(wire::wait({name("go", round)}), 1), wire::stop_waiting());
    }
  });
  CHECK_EQUAL(host.client().ask(wire::get(name("b", kRounds - 1)), 9), wire::text("8"));
}

TEST(a_cancel_that_races_with_the_wake_is_answered) {
  constexpr std::size_t kRounds = 300;
  Host host(2);
  auto clients = clients_of(host, 2);  // one on each loop
  std::size_t woken = 0;
  for (std::size_t round = 0; round < kRounds; ++round) {
    const std::string key = name("k", round);
    clients[0].say(wire::wait({key}));
    clients[1].say(wire::set(key, "v"));
    std::string heard = clients[0].ask(wire::cancel_wait(), 1);
    if (heard == wire::stop_waiting()) {
      ++woken;
      heard = clients[0].hear(1);
    }
    CHECK_EQUAL(heard, wire::wait_canceled());
    CHECK_EQUAL(clients[0].ask(wire::ping(5), 4), wire::raw(5));  // nothing comes after it
  }
  CHECK_EQUAL(host.figure("requests", "cancel_wait"), static_cast<std::int64_t>(kRounds));
  CHECK(woken <= kRounds);
}

TEST(a_client_hears_of_its_key_before_it_is_answered_anything_later) {
  Host host(2);
  auto clients = clients_of(host, 2);
  for (std::size_t round = 0; round < 300; ++round) {
    const std::string key = name("k", round);
    // The ping's answer says that the wait is known, that of the other client that the key is set.
    CHECK_EQUAL(clients[0].ask(wire::wait({key}) + wire::ping(1), 4), wire::raw(1));
    CHECK_EQUAL(clients[1].ask(wire::set(key, "v") + wire::ping(2), 4), wire::raw(2));
    CHECK_EQUAL(clients[0].ask(wire::ping(3), 5), wire::stop_waiting() + wire::raw(3));
  }
}

TEST(clients_that_leave_while_they_are_woken_harm_nobody) {
  constexpr std::size_t kThreads = 4, kRounds = 60;
  Host host(3);
  Client bystander = host.client();
  run_threads(kThreads, [&](std::size_t thread) {
    Random random(thread);
    for (std::size_t round = 0; round < kRounds; ++round) {
      const std::string key = name("k", round);
      Client client = host.client();
      if (thread == 0) {
        client.ask(wire::set(key, "v") + wire::ping(1), 4);
        continue;
      }
      client.say(wire::wait({key, "never"}) + wire::wait({key}) + wire::barrier(name("b", round), 99));
      if (random.one_in(2)) {
        client.reset();
      }
    }
  });
  CHECK_EQUAL(bystander.ask(wire::ping(9), 4), wire::raw(9));
  CHECK(eventually([&] { return host.figure("connections", "open") == 1; }));
  CHECK(eventually([&] { return host.server().statistics().find("\"waited_keys\":0") != std::string::npos; }));
}

TEST(queues_between_loops) {
  constexpr std::size_t kConsumers = 4, kItems = 400;
  Host host(3);
  std::atomic<std::size_t> consumed{0};
  run_threads(kConsumers + 1, [&](std::size_t thread) {
    Client client = host.client();
    if (thread == kConsumers) {
      for (std::size_t i = 0; i < kItems + kConsumers; ++i) {
        client.say(wire::queue_push("q", i < kItems ? "item" : "stop"));
      }
      client.ask(wire::ping(1), 4);
      return;
    }
    while (true) {
      CHECK_EQUAL(client.ask(wire::wait({"q"}), 1), wire::stop_waiting());
      if (client.ask(wire::queue_pop("q"), 8) == wire::i64(0)) {
        continue;
      }
      if (client.hear(12) == wire::text("stop")) {
        return;
      }
      ++consumed;
    }
  });
  CHECK_EQUAL(consumed.load(), kItems);
}

}  // namespace rdzv::test
