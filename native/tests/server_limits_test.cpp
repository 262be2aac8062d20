// Clients that would hurt: each is closed for its own reason, which is counted and logged, and nobody else notices.
#include <sys/socket.h>

#include "check.hpp"
#include "client.hpp"

namespace rdzv::test {

namespace {

// A host and somebody who has to be served whatever the others do.
struct Guarded {
  explicit Guarded(const Limits& limits, std::uint32_t threads = 1) : host(threads, limits), bystander(host.client()) {
    served();
  }
  // Is `offender` closed for this reason, and is everybody else served before and after?
  bool closes(Client& offender, const std::string& reason) {
    served();
    const bool closed = offender.sees_close();
    served();
    return closed && eventually([&] { return host.refused(reason) > 0; }) &&
           host.log().find(reason) != std::string::npos;
  }
  void served() { CHECK_EQUAL(bystander.ask(wire::add("n", 1), 8), wire::i64(++count)); }

  Host host;
  Client bystander;
  std::int64_t count = 0;
};

constexpr std::uint32_t kSoon = 100, kLater = 60'000;

}  // namespace

TEST(a_client_that_never_greets_is_closed) {
  Guarded guarded(Limits{.handshake_ms = kSoon, .stall_ms = kLater});
  Client silent(guarded.host.port()), slow(guarded.host.port());
  slow.say(wire::greeting().substr(0, 4));
  CHECK(guarded.closes(silent, "no handshake"));
  CHECK(slow.sees_close());
  CHECK_EQUAL(guarded.host.refused("no handshake"), 2);
}

TEST(whoever_speaks_something_else_is_closed_at_once) {
  Guarded guarded(Limits{.handshake_ms = kLater, .stall_ms = kLater});
  Client browser(guarded.host.port());
  browser.say("GET / HTTP/1.1\r\n\r\n");
  CHECK(guarded.closes(browser, "not a store client"));
}

TEST(a_half_sent_request_is_closed_and_nobody_waits_for_it) {
  Guarded guarded(Limits{.handshake_ms = kLater, .stall_ms = kSoon});
  Client half = guarded.host.client();
  half.say(wire::ping(4711) + wire::set("k", "never complete").substr(0, 15));
  half.hear(4);
  CHECK(guarded.closes(half, "half-sent request"));
  CHECK_EQUAL(guarded.bystander.ask(wire::check({"k"}), 1), wire::not_ready());
  CHECK(eventually([&] { return guarded.host.figure("bytes", "buffered") == 0; }));  // added up after the replies were sent
  guarded.served();  // who has nothing under way may be silent for as long as it likes
}

TEST(a_client_that_does_not_read_is_closed) {
  Guarded guarded(Limits{.handshake_ms = kLater, .stall_ms = kSoon}, 2);
  guarded.bystander.say(wire::set("k", std::string(8 << 20, 'v')));
  guarded.served();
  Client deaf(guarded.host.port(), "127.0.0.1", 4096);
  deaf.say(wire::greeting() + wire::get("k") + wire::get("k") + wire::get("k"));
  CHECK(eventually([&] { return guarded.host.refused("does not read") > 0; }));
  CHECK(guarded.closes(deaf, "does not read"));
}

TEST(unread_replies_are_limited) {
  Guarded guarded(Limits{.output_bytes = 200'000, .handshake_ms = kLater, .stall_ms = kLater});
  guarded.bystander.say(wire::set("k", std::string(10'000, 'v')));
  guarded.served();
  Client deaf(guarded.host.port(), "127.0.0.1", 4096);
  deaf.say(wire::greeting());
  CHECK(eventually([&] {
    const std::string more = wire::get("k");
    std::string_view left = more;
    return !deaf.push(left) || guarded.host.refused("unread replies") > 0;
  }));
  CHECK(guarded.closes(deaf, "unread replies"));
}

TEST(full_buffers_close_the_worst_and_nobody_else) {
  Guarded guarded(Limits{.buffered_bytes = 4 << 20, .handshake_ms = kLater, .stall_ms = kLater}, 2);
  std::vector<Client> small;
  for (int i = 0; i < 6; ++i) {
    small.push_back(guarded.host.client());
    small.back().say(wire::set("s", std::string(200'000, 's')).substr(0, 100'000));
  }
  Client worst = guarded.host.client();
  const std::string huge = wire::set("k", std::string(8 << 20, 'v'));
  std::string_view left = std::string_view(huge).substr(0, huge.size() - 1);
  CHECK(eventually([&] { return !worst.push(left) || guarded.host.refused("buffers full") > 0; }));
  CHECK(guarded.closes(worst, "buffers full"));
  CHECK_EQUAL(guarded.host.refused("buffers full"), 1);
  for (Client& client : small) {
    client.say(wire::set("s", std::string(200'000, 's')).substr(100'000) + wire::ping(6));
    CHECK_EQUAL(client.hear(4), wire::raw(6));
  }
  CHECK(eventually([&] { return guarded.host.figure("bytes", "buffered") == 0; }));  // added up after the replies were sent
}

TEST(old_versions_of_a_value_that_nobody_reads_are_limited) {
  constexpr int kLimit = 8 << 20;
  Guarded guarded(Limits{.buffered_bytes = kLimit, .handshake_ms = 2000, .stall_ms = kLater}, 2);
  std::vector<Client> deaf;
  for (int i = 0; i < 30; ++i) {  // each is sent a version of its own, more often than its socket takes
    guarded.bystander.say(wire::set("k", std::string(1 << 20, static_cast<char>('a' + i))));
    guarded.served();
    deaf.emplace_back(guarded.host.port(), "127.0.0.1", 4096);
    std::string said = wire::greeting();
    for (int gets = 0; gets < 8; ++gets) {
      said += wire::get("k");
    }
    deaf.back().say(said);
    CHECK_EQUAL(deaf.back().hear(8), wire::i64(1 << 20));
  }
  CHECK(eventually([&] { return guarded.host.refused("buffers full") > 0; }));
  CHECK(eventually([&] { return guarded.host.figure("bytes", "buffered") <= kLimit; }));
  guarded.served();
}

TEST(too_many_connections_are_refused_until_others_leave) {
  Guarded guarded(Limits{.connections = 5, .handshake_ms = kLater, .stall_ms = kLater}, 3);
  std::vector<Client> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(guarded.host.client());
    CHECK_EQUAL(clients.back().ask(wire::ping(1), 4), wire::raw(1));
  }
  Client surplus(guarded.host.port());
  CHECK(guarded.closes(surplus, "too many connections"));
  CHECK_EQUAL(guarded.host.figure("connections", "open"), 5);
  CHECK_EQUAL(guarded.host.figure("connections", "limit"), 5);
  clients.pop_back();
  CHECK(eventually([&] { return guarded.host.figure("connections", "open") == 4; }));
  Client next = guarded.host.client();
  CHECK_EQUAL(next.ask(wire::ping(1), 4), wire::raw(1));
}

TEST(who_reads_as_fast_as_it_asks_leaves_others_their_turn) {
  // 1.6 GB of replies, asked for at once, to one who reads all the time: on one loop, others must not wait for the end.
  Guarded guarded(Limits{});
  constexpr std::size_t kValue = 100'000, kGets = 16'000;
  guarded.bystander.say(wire::set("k", std::string(kValue, 'v')));
  guarded.served();
  std::string said = wire::greeting();
  for (std::size_t i = 0; i < kGets; ++i) {
    said += wire::get("k");
  }
  Client greedy(guarded.host.port());
  greedy.say(said);
  std::size_t heard = 0;
  const auto read = [&](std::size_t bytes) {
    greedy.hear(bytes);
    heard += bytes;
  };
  read(20 << 20);
  guarded.bystander.say(wire::ping(8));
  char answered = 0;
  while (recv(guarded.bystander.fd(), &answered, 1, MSG_PEEK) != 1 && heard < kGets * kValue) {
    read(1 << 20);
  }
  CHECK(heard < kGets * kValue / 2);
  CHECK_EQUAL(guarded.bystander.hear(4), wire::raw(8));
  greedy.reset();
}

TEST(every_offence_has_its_own_count) {
  Guarded guarded(Limits{.key_bytes = 100, .value_bytes = 100, .keys_per_request = 10, .request_bytes = 300});
  const auto offend = [&](const std::string& bytes, const std::string& reason) {
    Client offender = guarded.host.client();
    offender.say(wire::set("text", "text") + wire::ping(1));
    offender.hear(4);
    offender.say(bytes);
    CHECK(guarded.closes(offender, reason));
    CHECK_EQUAL(guarded.host.refused(reason), 1);
  };
  offend(wire::op(77), "unknown request");
  offend(wire::op(3) + wire::u64(1u << 30), "key too long");
  offend(wire::op(1) + wire::text("k") + wire::u64(101), "value too long");
  offend(wire::op(10) + wire::u64(131073), "too many keys");
  offend(wire::multi_set({"a", std::string(100, 'v'), "b", std::string(100, 'v'), "c", std::string(100, 'v')}),
         "request too long");
  offend(wire::add("text", 1), "not a number");
  offend(wire::wait({"1", "2", "3", "4", "5", "6"}) + wire::wait({"1", "2", "3", "4", "5"}), "too many waits");
}

}  // namespace rdzv::test
