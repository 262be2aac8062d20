// A server on loopback: ports, keyspaces, statistics, the end.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <stdexcept>
#include <system_error>

#include "check.hpp"
#include "client.hpp"

namespace rdzv::test {

namespace {

template <class Exception>
bool throws(const std::function<void()>& action) {
  try {
    action();
  } catch (const Exception&) {
    return true;
  }
  return false;
}

std::string framed_enter(Client& client, const std::string& name) {
  CHECK_EQUAL(client.ask(wire::framed_greeting(), 8), wire::framed_welcome());
  client.say(wire::frame(1, 2, name));
  std::uint32_t size = 0;
  std::memcpy(&size, client.hear(4).data(), 4);
  return client.hear(size).substr(5);
}

}  // namespace

TEST(a_store_over_tcp) {
  Host host(1);
  Client client(host.port());
  for (const char byte : wire::greeting() + wire::ping(77)) {
    client.say(std::string(1, byte));
  }
  CHECK_EQUAL(client.hear(4), wire::raw(77));
  const std::string large(3 << 20, 'x');
  client.say(wire::set("k", large));
  CHECK(client.ask(wire::get("k"), 8 + large.size()) == wire::text(large));
  CHECK_EQUAL(host.client().ask(wire::add("n", 5), 8), wire::i64(5));
}

TEST(thousands_of_requests_in_one_go) {
  Host host(2);
  Client client = host.client();
  std::string said, expected;
  for (int i = 0; i < 20'000; ++i) {
    said +=
        wire::add("n", 1) + wire::set("k" + std::to_string(i % 50), "v") + wire::ping(static_cast<std::uint32_t>(i));
    expected += wire::i64(i + 1) + wire::raw(i);
  }
  std::string heard;
  for (std::string_view left = said; heard.size() < expected.size();) {
    CHECK(client.push(left));
    heard += client.hear(std::min<std::size_t>(expected.size() - heard.size(), left.empty() ? 1 << 20 : 12));
  }
  CHECK(heard == expected);
}

TEST(addresses_of_both_families) {
  Host host(2);
  const auto dual = host.server().open_keyspace("dual", bound_socket("::"));
  Client four(dual.port), six(dual.port, "::1");
  four.greet();
  six.greet();
  CHECK_EQUAL(four.ask(wire::add("n", 1), 8), wire::i64(1));
  CHECK_EQUAL(six.ask(wire::add("n", 1), 8), wire::i64(2));
  four.say(wire::ping(41) + wire::wait({"w"}));
  six.say(wire::ping(61) + wire::wait({"w"}));
  four.hear(4);
  six.hear(4);
  CHECK(eventually([&] { return host.server().statistics().find("\"waiters\":2") != std::string::npos; }));
  const std::string statistics = host.server().statistics();
  CHECK(statistics.find("\"address\":\"127.0.0.1:") != std::string::npos);
  CHECK(statistics.find("\"address\":\"[::1]:") != std::string::npos);
  CHECK(statistics.find("\"pid\":41") != std::string::npos);
}

TEST(keyspaces_are_apart) {
  Host host(2);
  const auto second = host.open("second");
  Client one = host.client(), two = host.client(second.port);
  CHECK_EQUAL(one.ask(wire::set("k", "1") + wire::ping(1), 4), wire::raw(1));
  CHECK_EQUAL(two.ask(wire::get("k"), 8), wire::text(""));
  host.server().wipe_keyspace(host.first().id);
  CHECK_EQUAL(one.ask(wire::num_keys(), 8), wire::i64(0));
}

TEST(a_keyspace_can_be_entered_by_name_from_any_port) {
  Host host(3);
  const auto second = host.open("second");
  CHECK_EQUAL(host.client(second.port).ask(wire::add("n", 1), 8), wire::i64(1));
  Client relay_client(host.port()), lost(host.port());
  CHECK_EQUAL(framed_enter(relay_client, "second"), "");
  CHECK_EQUAL(relay_client.ask(wire::add("n", 1), 8), wire::i64(2));
  CHECK_EQUAL(framed_enter(lost, "third"), "there is no keyspace 'third'");
  host.server().close_keyspace(host.first().id);
  CHECK(lost.sees_close());
  CHECK_EQUAL(relay_client.ask(wire::add("n", 1), 8), wire::i64(3));  // it came by that port, but is not of that keyspace
  host.server().close_keyspace(second.id);
  CHECK(relay_client.sees_close());
}

TEST(a_closed_keyspace_closes_its_clients_and_frees_its_port) {
  Host host(2);
  const auto second = host.open("second");
  Client client = host.client(second.port), waiting = host.client(second.port), silent(second.port);
  waiting.say(wire::wait({"k"}));
  client.ask(wire::set("k2", "v") + wire::ping(1), 4);
  host.server().close_keyspace(second.id);
  CHECK(client.sees_close());
  CHECK(waiting.sees_close());
  CHECK(silent.sees_close());
  CHECK(!can_connect(second.port));
  CHECK(throws<std::out_of_range>([&] { host.server().close_keyspace(second.id); }));
  CHECK(throws<std::out_of_range>([&] { host.server().wipe_keyspace(second.id); }));
  // The name and the port can be used again; nothing of the old keys is there.
  const auto again = host.server().open_keyspace("second", bound_socket("127.0.0.1", second.port));
  CHECK_EQUAL(again.port, second.port);
  CHECK(again.id != second.id);
  CHECK_EQUAL(host.client(again.port).ask(wire::num_keys(), 8), wire::i64(0));
  CHECK_EQUAL(host.client().ask(wire::ping(1), 4), wire::raw(1));
}

TEST(a_keyspace_that_cannot_be_opened_takes_nothing_along) {
  Host host(2);
  CHECK(throws<std::invalid_argument>([&] { host.open("first"); }));
  CHECK(throws<std::system_error>([&] { host.server().open_keyspace("x", -1); }));
  int ends[2];
  CHECK_EQUAL(pipe(ends), 0);
  CHECK(throws<std::system_error>([&] { host.server().open_keyspace("x", ends[0]); }));
  CHECK_EQUAL(fcntl(ends[0], F_GETFD), -1);  // it was owned
  close(ends[1]);
  CHECK_EQUAL(host.client(host.open("x").port).ask(wire::ping(1), 4), wire::raw(1));
}

TEST(after_stop_nothing_is_left) {
  Host host(3);
  const auto second = host.open("second");
  Client client = host.client(), waiting = host.client(second.port), silent(host.port());
  waiting.say(wire::wait({"k"}));
  client.ask(wire::ping(1), 4);
  host.server().stop();
  CHECK(client.sees_close());
  CHECK(waiting.sees_close());
  CHECK(silent.sees_close());
  CHECK(!can_connect(host.port()));
  CHECK(!can_connect(second.port));
  host.server().stop();
  const int socket = bound_socket("127.0.0.1", host.port());
  CHECK(throws<std::invalid_argument>([&] { host.server().open_keyspace("late", socket); }));
  CHECK_EQUAL(fcntl(socket, F_GETFD), -1);
  CHECK_EQUAL(host.figure("connections", "open"), 0);
}

TEST(statistics_add_up) {
  Host host(3);
  {
    std::vector<Client> clients;
    for (int i = 0; i < 30; ++i) {
      clients.push_back(host.client());
      CHECK_EQUAL(clients.back().ask(wire::ping(1) + wire::set("k", "value") + wire::add("n", 1), 12).substr(4),
                  wire::i64(i + 1));
    }
    CHECK_EQUAL(host.figure("connections", "open"), 30);
    CHECK_EQUAL(host.figure("requests", "ping"), 30);
    CHECK_EQUAL(host.figure("requests", "set"), 30);
    CHECK_EQUAL(host.figure("requests", "validate"), 30);
    CHECK_EQUAL(host.figure("bytes", "stored"), 1 + 5 + 1 + 2);
    CHECK(eventually([&] { return host.figure("bytes", "sent") == 30 * 12; }));  // counted after it was sent
  }
  CHECK(eventually([&] { return host.figure("connections", "open") == 0; }));
  CHECK_EQUAL(host.figure("connections", "accepted"), 30);
  CHECK_EQUAL(host.figure("connections", "closed"), 30);
  CHECK(host.figure("connections", "peak") <= 30);
  CHECK(eventually([&] { return host.figure("bytes", "buffered") == 0; }));  // added up after the replies were sent
  CHECK_EQUAL(host.log(), "");  // clients that leave are no news
}

TEST(connections_are_spread_over_the_loops) {
  Host host(4);
  std::vector<Client> clients;
  for (int i = 0; i < 80; ++i) {
    clients.push_back(host.client());
    clients.back().ask(wire::ping(1), 4);
  }
  const std::string statistics = host.server().statistics();
  int loops = 0;
  for (std::size_t at = statistics.find("\"loops\"");
       (at = statistics.find("\"connections\":20", at)) != std::string::npos; ++at) {
    ++loops;
  }
  CHECK_EQUAL(loops, 4);
}

}  // namespace rdzv::test
