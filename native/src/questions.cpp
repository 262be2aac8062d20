// When the event loop answers questions: not before what had been sent to any loop by then is read.
#include "rdzv/event_loop.hpp"

namespace rdzv {

namespace {

constexpr std::int64_t kPatienceMs = 2000;  // no loop is hung up by another one

}  // namespace

std::uint64_t EventLoop::fall_asleep(int& wait_ms) {
  state_.store(State::kAsleep);  // whoever asks from here on, or has caught up, wakes it
  const std::uint64_t asked = asked_by_.exchange(0);
  const bool questions = !waiting_.empty() || !due_.empty();
  if (asked != 0 || (questions && !awaits())) {
    wait_ms = 0;
  }
  return asked;
}

void EventLoop::answer_questions() {
  while (!awaits()) {
    const auto now = std::exchange(waiting_, {});
    for (Connection* connection : now) {
      connection->loop.again = false;
    }
    for (Connection* connection : now) {
      step(*connection, 0, Questions::kNow);
    }
    if (due_.empty()) {
      return;
    }
    waiting_.swap(due_);
    ask_others();
  }
}

void EventLoop::ask_others() {
  if (awaited_.load() > 0) {
    return;  // one of them takes very long: it is not waited for again
  }
  awaited_.store(1);  // not 0 before all are asked
  for (const auto& other : loop_group_.loops) {
    if (other.get() == this || other->has_read_all()) {
      continue;
    }
    awaited_.fetch_add(1);
    other->asked_by_.fetch_or(std::uint64_t{1} << index_);
    if (other->state_.load() == State::kAsleep) {
      other->mailbox_.wake();
    }
  }
  patience_ends_ms_ = work_.context.running_ms() + kPatienceMs;
  awaited_.fetch_sub(1);
}

bool EventLoop::has_read_all() const {
  // In this order: what is not to be read any more has been read by then, and is done unless the loop is still reading.
  epoll_event any{};
  return connections() == 0 || (epoll_wait(epoll_.get(), &any, 1, 0) == 0 && state_.load() != State::kReading);
}

void EventLoop::caught_up() {
  if (awaited_.fetch_sub(1) == 1 && state_.load() == State::kAsleep) {
    mailbox_.wake();
  }
}

}  // namespace rdzv
