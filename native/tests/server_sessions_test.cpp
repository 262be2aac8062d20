// Sessions over real sockets: on several loops, ended in every way there is.
#include <atomic>

#include "check.hpp"
#include "client.hpp"
#include "coordination.hpp"
#include "threads.hpp"

namespace rdzv::test {

namespace {

class Sessions : public Client {
 public:
  explicit Sessions(std::uint16_t port, std::uint32_t ttl_ms = 60'000, std::string_view run = "run") : Client(port) {
    CHECK_EQUAL(ask(wire::framed_greeting(), 8), wire::framed_welcome());
    say(wire::open(1, ttl_ms, run));
    CHECK_EQUAL(wire::told(frame()), "#1/0");
  }
  std::string frame() {
    const std::string size = hear(4);
    std::uint32_t number = 0;
    std::memcpy(&number, size.data(), 4);
    return size + hear(number);
  }
  std::string told() { return wire::told(frame()); }
  std::string told(std::string_view request) {
    say(request);
    return told();
  }
};

std::string member(std::size_t i) { return "m/" + std::to_string(i); }

}  // namespace

TEST(a_silent_session_ends_and_the_others_are_told) {
  Host host(2);
  Sessions watcher(host.port()), silent(host.port(), 150), lively(host.port(), 150);
  CHECK_EQUAL(watcher.told(wire::watch(2, 7, "m/")), "#2/0");
  CHECK_EQUAL(silent.told(wire::put(2, {"m/1", "v"}, wire::kEphemeral)), "#2/0");
  CHECK_EQUAL(watcher.told(), "[7: +m/1@1=v]");
  std::atomic<bool> told{false};
  run_threads(2, [&](std::size_t i) {
    if (i == 0) {
      CHECK_EQUAL(watcher.told(), "[7: -m/1@2]");
      told = true;
    } else {
      while (!told) {
        CHECK_EQUAL(lively.told(wire::keep_alive(3)), "#3/0");
      }
    }
  });
  CHECK(silent.sees_close());
  CHECK_EQUAL(host.refused("session expired"), 1);
  CHECK_EQUAL(lively.told(wire::keep_alive(4)), "#4/0");
}

TEST(a_session_ends_with_its_connection_whatever_the_reason) {
  Host host(2);
  Sessions watcher(host.port());
  watcher.told(wire::watch(2, 7, ""));
  const auto aside = host.open("aside");
  std::uint64_t revision = 0;
  for (const char* reason : {"leaves", "resets", "bad frame", "keyspace closed"}) {
    const std::string why(reason);
    Sessions member(why == "keyspace closed" ? aside.port : host.port());
    CHECK_EQUAL(member.told(wire::put(2, {"m", why}, wire::kEphemeral)), "#2/0");
    CHECK_EQUAL(watcher.told(), "[7: +m@" + std::to_string(++revision) + "=" + why + "]");
    if (why == "leaves") {
      member.leave();
    } else if (why == "resets") {
      member.reset();
    } else if (why == "bad frame") {
      member.say(wire::raw(std::uint32_t{1}));
    } else {
      host.server().close_keyspace(aside.id);
    }
    CHECK_EQUAL(watcher.told(), "[7: -m@" + std::to_string(++revision) + "]");
  }
  host.server().stop();
  CHECK(watcher.sees_close());
}

TEST(sessions_of_all_loops_meet_while_they_come_and_go) {
  constexpr std::size_t kThreads = 4, kRounds = 25, kWatchers = 8;
  Host host(4);
  Sessions first(host.port());
  std::vector<Sessions> watchers;
  for (std::size_t i = 0; i < kWatchers; ++i) {
    watchers.emplace_back(host.port());
    CHECK_EQUAL(watchers.back().told(wire::watch(2, 7, "m/")), "#2/0");
  }
  run_threads(kThreads, [&](std::size_t i) {
    for (std::size_t round = 0; round < kRounds; ++round) {
      // A name of its own: the key of the round before may not be gone yet.
      const std::string name = member(i * kRounds + round);
      Sessions session(host.port());
      CHECK_EQUAL(session.told(wire::watch(2, 1, name + "/")), "#2/0");
      CHECK_EQUAL(session.told(wire::put(3, {name, ""}, wire::kEphemeral)), "#3/0");
    }
  });
  // Each watcher hears of everything once, in the order of the revisions.
  for (Sessions& watcher : watchers) {
    std::uint64_t heard = 0;
    while (heard < 2 * kThreads * kRounds) {
      const std::string text = watcher.told();
      for (std::size_t at = text.find('@'); at != std::string::npos; at = text.find('@', at + 1)) {
        CHECK_EQUAL(std::strtoull(text.c_str() + at + 1, nullptr, 10), ++heard);
      }
    }
  }
  CHECK(host.server().statistics().find("\"runs\":[{\"name\":\"run\",\"sessions\":9,\"keys\":0,\"watches\":8,") !=
        std::string::npos);
}

TEST(a_watcher_that_does_not_read_is_closed_and_hurts_nobody) {
  Host host(2, Limits{.output_bytes = 2u << 20});
  Sessions deaf(host.port()), writer(host.port());
  CHECK_EQUAL(deaf.told(wire::watch(2, 7, "")), "#2/0");
  const std::string value(500'000, 'v');
  for (std::uint32_t i = 0; i < 1000 && host.refused("unread replies") == 0; ++i) {
    CHECK_EQUAL(writer.told(wire::put(i + 2, {"k", value})), "#" + std::to_string(i + 2) + "/0");
  }
  CHECK_EQUAL(host.refused("unread replies"), 1);
}

TEST(stopping_ends_sessions_while_they_write) {
  Host host(2);
  std::vector<Sessions> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back(host.port());
    writers.back().told(wire::watch(2, 7, ""));
  }
  run_threads(5, [&](std::size_t i) {
    if (i == 4) {
      host.server().stop();
      return;
    }
    std::string said;
    for (std::uint32_t j = 0; j < 200; ++j) {
      said += wire::put(3, {member(i), ""}, wire::kEphemeral);
    }
    std::string_view left = said;
    writers[i].push(left);
    CHECK(writers[i].sees_close());
  });
}

}  // namespace rdzv::test
