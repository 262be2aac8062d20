// A server that runs out of file descriptors: it says so, goes on, and recovers. In a process of its own, because the
// limit is one of the process.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.hpp"
#include "client.hpp"

namespace rdzv::test {

namespace {

// Serves with a limit of so many descriptors beyond what is open already, until the pipe says it is enough.
[[noreturn]] void serve_with_few_descriptors(unsigned spare, int said, int heard) {
  const int last = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(last);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = static_cast<rlim_t>(last) + spare;
  setrlimit(RLIMIT_NOFILE, &limit);
  Host host(2, Limits{.connections = 1000});
  const std::uint16_t port = host.port();
  [[maybe_unused]] auto written = write(said, &port, sizeof port);
  char command = 0;
  while (read(heard, &command, 1) == 1) {
    const std::int64_t refused = host.refused("out of file descriptors");
    const std::int64_t logged = host.log().find("out of file descriptors") != std::string::npos ? 1 : 0;
    const std::int64_t answer[] = {refused, logged, host.figure("connections", "open")};
    written = write(said, answer, sizeof answer);
  }
  _exit(0);
}

struct Served {
  explicit Served(unsigned spare) {
    int said[2], heard[2];
    REQUIRE(pipe(said) == 0 && pipe(heard) == 0);
    child = fork();
    if (child == 0) {
      close(said[0]);
      close(heard[1]);
      serve_with_few_descriptors(spare, said[1], heard[0]);
    }
    close(said[1]);
    close(heard[0]);
    from = UniqueFd(said[0]);
    to = UniqueFd(heard[1]);
    REQUIRE(read(from.get(), &port, sizeof port) == sizeof port);
  }
  ~Served() {
    to.reset();
    waitpid(child, &status, 0);
    CHECK_EQUAL(status, 0);
  }
  struct Answer {
    std::int64_t refused, logged, open;
  };
  Answer ask() {
    Answer answer{};
    CHECK_EQUAL(write(to.get(), "?", 1), 1);
    CHECK_EQUAL(read(from.get(), &answer, sizeof answer), static_cast<ssize_t>(sizeof answer));
    return answer;
  }

  pid_t child = -1;
  int status = -1;
  UniqueFd from, to;
  std::uint16_t port = 0;
};

}  // namespace

TEST(out_of_file_descriptors_it_serves_on_and_recovers) {
  Served served(40);
  Client bystander(served.port);
  CHECK_EQUAL(bystander.ask(wire::greeting() + wire::ping(1), 4), wire::raw(1));
  std::vector<Client> crowd;
  std::size_t turned_away = 0;
  for (int i = 0; i < 100; ++i) {
    crowd.emplace_back(served.port);
    // Each is either served or closed: nobody hangs.
    try {
      CHECK_EQUAL(crowd.back().ask(wire::greeting() + wire::ping(7), 4), wire::raw(7));
    } catch (const std::runtime_error&) {
      ++turned_away;
    }
    if (i % 10 == 0) {
      CHECK_EQUAL(bystander.ask(wire::ping(2), 4), wire::raw(2));
    }
  }
  CHECK(turned_away > 50);
  CHECK(turned_away < 100);
  const auto full = served.ask();
  CHECK(full.refused > 0);
  CHECK_EQUAL(full.logged, 1);
  CHECK_EQUAL(full.open, static_cast<std::int64_t>(101 - turned_away));
  crowd.clear();
  CHECK(eventually([&] { return served.ask().open == 1; }));
  Client next(served.port);
  CHECK_EQUAL(next.ask(wire::greeting() + wire::ping(3), 4), wire::raw(3));
  CHECK_EQUAL(bystander.ask(wire::ping(4), 4), wire::raw(4));
}

}  // namespace rdzv::test
