// A keyspace that pauses after its process has stood still, and how long a proxy holds values.
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "check.hpp"
#include "rdzv/framing.hpp"
#include "rdzv/pause.hpp"
#include "rdzv/unique_fd.hpp"
#include "threads.hpp"

namespace rdzv::test {

namespace {

constexpr int kAfterMs = 200;

void stand_still() { std::this_thread::sleep_for(std::chrono::milliseconds(kAfterMs + 50)); }

bool told(const UniqueFd& event) {
  pollfd poll{event.get(), POLLIN, 0};
  if (::poll(&poll, 1, 0) != 1) {
    return false;
  }
  std::uint64_t count = 0;
  return read(event.get(), &count, sizeof count) == sizeof count;
}

}  // namespace

TEST(a_pause_begins_with_the_first_look_after_a_standstill) {
  Pause pause;
  CHECK(!pause.check());
  CHECK(!pause.resume(0));
  CHECK_EQUAL(pause.tick_ms(), 0);
  const UniqueFd event(pause.after(kAfterMs));
  CHECK_EQUAL(pause.tick_ms(), kAfterMs / 4);
  CHECK(!pause.check());
  CHECK(!told(event));
  stand_still();
  CHECK(!pause.paused());
  CHECK(pause.check());
  CHECK(told(event));
  CHECK(pause.check());
  CHECK(!told(event));
  CHECK_EQUAL(pause.number(), 1u);
  CHECK(!pause.resume(2));
  CHECK(pause.resume(1));
  CHECK(!pause.check());
  CHECK(!pause.resume(1));
}

TEST(a_standstill_before_resume_is_another_pause) {
  Pause pause;
  const UniqueFd event(pause.after(kAfterMs));
  stand_still();
  CHECK(pause.check());
  stand_still();
  CHECK(!pause.resume(1));
  CHECK_EQUAL(pause.number(), 2u);
  CHECK(pause.resume(2));
}

TEST(a_pause_is_asked_for_once_and_ends_with_its_keyspace) {
  Pause pause;
  const UniqueFd event(pause.after(kAfterMs));
  bool refused = false;
  try {
    pause.after(kAfterMs);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
  pause.end();
  CHECK(told(event));
  stand_still();
  CHECK(pause.check());
}

TEST(one_loop_that_takes_long_is_no_standstill) {
  Pause pause;
  const UniqueFd event(pause.after(kAfterMs));
  std::atomic<bool> done{false};
  run_threads(2, [&](std::size_t i) {
    if (i == 0) {
      stand_still();
      pause.check();
      done = true;
    }
    while (!done) {
      pause.check();
    }
  });
  CHECK_EQUAL(pause.number(), 0u);
}

TEST(all_loops_see_the_pause_at_their_first_look) {
  for (int round = 0; round < 3; ++round) {
    Pause pause;
    const UniqueFd event(pause.after(kAfterMs));
    stand_still();
    std::atomic<int> paused{0};
    run_threads(4, [&](std::size_t) { paused += pause.check() ? 1 : 0; });
    CHECK_EQUAL(paused.load(), 4);
    CHECK_EQUAL(pause.number(), 1u);
  }
}

TEST(a_proxy_holds_values_for_half_of_its_grace_and_not_for_long) {
  CHECK_EQUAL(hold_ms(5000), 2500);
  CHECK_EQUAL(hold_ms(600'000), kMostHoldMs);
}

}  // namespace rdzv::test
