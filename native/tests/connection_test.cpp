// One connection on a socket pair, with a clock of the test's own: what it sends, what it holds, when it is overdue.
#include "rdzv/connection.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <stdexcept>

#include "check.hpp"
#include "coordination.hpp"
#include "memory.hpp"
#include "requests.hpp"
#include "talk.hpp"

namespace rdzv::test {

namespace {

constexpr Limits kLimits{.output_bytes = 4 << 20, .handshake_ms = 1000, .stall_ms = 3000};

class Line {
 public:
  explicit Line(const Limits& limits = kLimits) : room_(limits), work_{room_.context, std::string(65536, '\0'), {}, {}} {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) {
      throw std::runtime_error("socketpair");
    }
    client = UniqueFd(ends[0]);
    connection.emplace(UniqueFd(ends[1]), room_.keyspace, work_, false, nullptr);
  }

  void say(std::string_view bytes) {
    CHECK_EQUAL(send(client.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  // The same, however much it is, served meanwhile.
  void say_all(std::string_view bytes) {
    while (!bytes.empty() && connection->reads()) {
      const ssize_t sent = send(client.get(), bytes.data(), std::min<std::size_t>(bytes.size(), 60'000), 0);
      REQUIRE(sent > 0);
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      CHECK(step());
    }
  }
  // As an event loop does when the socket is ready. False: it would close it.
  bool step() {
    bool alive = connection->flush(work_);
    connection->resume(work_, Questions::kNow);
    if (alive && (connection->interest() & EPOLLIN) != 0) {
      alive = connection->readable(work_, Questions::kLater);
      if (connection->flush(work_) && connection->wants_turn()) {  // its next one
        connection->resume(work_, Questions::kNow);
      }
    }
    for (const auto& waiter : std::exchange(work_.wakes, {})) {
      connection->woken(*waiter);
    }
    return connection->flush(work_) && alive && connection->refusal() == Refusal::kNone;
  }
  bool step(std::string_view bytes) {
    say(bytes);
    return step();
  }
  std::string hear(std::size_t most = 1 << 20) {
    std::string bytes(most, '\0');
    const ssize_t got = recv(client.get(), bytes.data(), bytes.size(), 0);
    return bytes.substr(0, got > 0 ? static_cast<std::size_t>(got) : 0);
  }
  void at(std::int64_t now_ms) { work_.context.now_ms = now_ms; }
  Refusal overdue() { return connection->overdue(work_.context); }
  Keyspace& store() { return *room_.keyspace; }
  Workplace& work() { return work_; }
  // Reads and serves until there is nothing more to be heard.
  std::size_t drain_all() {
    std::size_t heard = 0;
    for (std::string part = hear(); !part.empty(); part = hear()) {
      heard += part.size();
      CHECK(step());
    }
    return heard;
  }

  UniqueFd client;
  std::optional<Connection> connection;

 private:
  Room room_;
  Workplace work_;
};

void set(Line& line, std::string_view key, const std::string& value) {
  Wakes wakes;
  line.store().set(key, value, wakes);
}

}  // namespace

TEST(a_greeting_is_due_in_time) {
  Line line;
  CHECK(line.connection->suspect());
  line.at(1000);
  CHECK_EQUAL(line.overdue(), Refusal::kNone);
  CHECK(line.step(wire::greeting().substr(0, 4)));  // sending a part of it gains no time
  line.at(1001);
  CHECK_EQUAL(line.overdue(), Refusal::kNoHandshake);
  CHECK(line.step(wire::greeting().substr(4)));
  CHECK(!line.connection->suspect());
}

TEST(half_a_request_may_stand_still_for_a_while) {
  Line line;
  CHECK(line.step(wire::greeting()));
  line.at(1'000'000);  // silence between requests is nothing to be overdue for
  CHECK(!line.connection->suspect());
  CHECK(line.step(wire::set("k", "v").substr(0, 10)));
  CHECK(line.connection->suspect());
  line.at(1'003'000);
  CHECK_EQUAL(line.overdue(), Refusal::kNone);
  CHECK(line.step("x"));  // still coming
  line.at(1'006'000);
  CHECK_EQUAL(line.overdue(), Refusal::kNone);
  line.at(1'006'001);
  CHECK_EQUAL(line.overdue(), Refusal::kHalfSent);
}

TEST(unread_replies_may_stand_still_for_a_while) {
  Line line;
  set(line, "k", std::string(3 << 20, 'v'));
  line.at(50'000);
  CHECK(line.step(wire::greeting() + wire::get("k")));
  CHECK(line.connection->suspect());
  line.at(53'000);
  CHECK_EQUAL(line.overdue(), Refusal::kNone);
  CHECK(line.hear().size() > 0);
  CHECK(line.step());  // some more has been sent
  line.at(56'000);
  CHECK_EQUAL(line.overdue(), Refusal::kNone);
  CHECK(line.step(wire::ping(1)));  // to send more requests is no reading
  line.at(56'001);
  CHECK_EQUAL(line.overdue(), Refusal::kDoesNotRead);
  line.drain_all();
  CHECK(!line.connection->suspect());
}

TEST(a_client_that_leaves_is_noticed) {
  Line line;
  CHECK(line.step(wire::greeting() + wire::set("k", "half").substr(0, 9)));
  line.client.reset();
  CHECK(!line.step());
  CHECK_EQUAL(line.connection->refusal(), Refusal::kNone);
}

TEST(no_more_is_read_than_can_be_answered) {
  Line line;
  set(line, "k", std::string(100'000, 'v'));
  std::string said = wire::greeting();
  for (int i = 0; i < 200; ++i) {
    said += wire::get("k");
  }
  CHECK(line.step(said));
  CHECK((line.connection->interest() & EPOLLOUT) != 0);
  std::size_t pings = 0;
  for (; pings < 100 && (line.connection->interest() & EPOLLIN) != 0; ++pings) {
    CHECK(line.step(wire::ping(1)));
  }
  CHECK((line.connection->interest() & EPOLLIN) == 0);
  CHECK(line.connection->unfinished() < 2u << 20);
  CHECK_EQUAL(line.drain_all(), 200u * 100'008 + 4 * pings);
  CHECK_EQUAL(line.connection->interest(), static_cast<std::uint32_t>(EPOLLIN));
  CHECK_EQUAL(line.connection->unfinished(), 0u);
}

TEST(small_replies_that_nobody_reads_are_limited) {
  Line line(Limits{.output_bytes = 100'000});
  set(line, "k", std::string(10'000, 'v'));
  CHECK(line.step(wire::greeting()));
  int asked = 0;
  while (asked < 1000 && line.step(wire::get("k"))) {
    ++asked;
  }
  CHECK_EQUAL(line.connection->refusal(), Refusal::kUnreadReplies);
}

TEST(what_is_held_is_counted) {
  Line line;
  CHECK(line.step(wire::greeting()));
  CHECK_EQUAL(line.connection->held(), 0u);
  CHECK(line.step(wire::set("key", std::string(1000, 'v')).substr(0, 500)));
  CHECK_EQUAL(line.connection->held(), 500u);
  CHECK(line.step(wire::set("key", std::string(1000, 'v')).substr(500)));
  CHECK_EQUAL(line.connection->held(), 0u);
}

TEST(a_long_request_leaves_no_buffer_behind) {
  Line line;
  CHECK(line.step(wire::greeting()));
  const std::string request = wire::check(wire::Texts(1000, std::string(8000, 'k')));
  const auto say_in_parts = [&](std::string_view bytes) {
    for (std::size_t at = 0; at < bytes.size(); at += 60'000) {
      CHECK(line.step(bytes.substr(at, 60'000)));
    }
  };
  say_in_parts(request);
  line.drain_all();
  const std::size_t before = live_bytes();
  say_in_parts(std::string_view(request).substr(0, request.size() / 2));
  CHECK(live_bytes() > before + 2'000'000);
  say_in_parts(std::string_view(request).substr(request.size() / 2));
  CHECK(live_bytes() < before + 20'000);
  say_in_parts(request + "\x03");  // and the first byte of the next one
  CHECK_EQUAL(line.connection->held(), 1u);
  CHECK(live_bytes() < before + 20'000);
  line.connection->hang_up();
}

TEST(a_long_reply_leaves_no_buffer_behind) {
  Line line;
  for (int i = 0; i < 300; ++i) {
    set(line, std::to_string(i), std::string(9'000, 'v'));
  }
  wire::Texts keys;
  for (int i = 0; i < 300; ++i) {
    keys.push_back(std::to_string(i));
  }
  CHECK(line.step(wire::greeting()));
  const std::size_t before = live_bytes();
  CHECK(line.step(wire::multi_get(keys)));
  CHECK(live_bytes() > before + 1'000'000);
  CHECK_EQUAL(line.drain_all(), 300u * 9'008);
  CHECK(line.work().reply_buffer.capacity() <= 1u << 20);
  CHECK(live_bytes() < before + (1u << 20) + 20'000);  // what the event loop keeps for the next reply
}

TEST(hanging_up_gives_back_everything_at_once) {
  Line line;
  set(line, "k", std::string(1 << 20, 'v'));
  CHECK(line.step(wire::greeting() + wire::wait({"w"}) + wire::get("k") + wire::set("half", "sent").substr(0, 12)));
  CHECK(line.connection->unfinished() > 0);
  line.connection->hang_up();
  CHECK_EQUAL(line.connection->unfinished(), 0u);
  CHECK_EQUAL(line.connection->fd(), -1);
  line.connection.reset();
  CHECK_EQUAL(line.store().summary(1, 1).waited_keys, 0u);
}

TEST(a_session_lives_as_long_as_something_is_heard) {
  Line line;
  line.at(1000);
  CHECK(line.step(wire::framed_greeting() + wire::open(1, 500, "run")));
  REQUIRE(line.connection->session() != nullptr);
  CHECK_EQUAL(line.connection->lease_ends_ms(), 1500);
  line.at(1400);
  CHECK(line.step(wire::keep_alive(2).substr(0, 1)));  // any byte counts
  CHECK_EQUAL(line.connection->lease_ends_ms(), 1900);
  line.at(1600);
  CHECK(line.step());
  CHECK_EQUAL(line.connection->lease_ends_ms(), 1900);
  line.connection->hang_up();
  CHECK(line.connection->session() == nullptr);
}

TEST(a_session_that_is_not_read_from_is_heard_while_it_reads) {
  Line line;
  line.at(1000);
  CHECK(line.step(wire::framed_greeting() + wire::open(1, 500, "run")));
  const std::string value(1 << 20, 'v');
  for (std::uint32_t i = 0; i < 3 && line.connection->reads(); ++i) {
    line.say_all(wire::put(2, {std::to_string(i), value}));
    line.say_all(wire::list(3, ""));
  }
  REQUIRE(!line.connection->reads());
  const auto ends = line.connection->lease_ends_ms();
  line.at(1700);
  CHECK(line.step());
  CHECK_EQUAL(line.connection->lease_ends_ms(), ends);
  CHECK(!line.hear().empty());
  CHECK(line.step());
  CHECK_EQUAL(line.connection->lease_ends_ms(), 2200);
  line.connection->hang_up();
}

}  // namespace rdzv::test
