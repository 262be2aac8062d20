// What keeps one client from hurting the others: those that the server waits for, for how long, and in how much memory.
#include <algorithm>

#include "rdzv/event_loop.hpp"

namespace rdzv {

namespace {

constexpr std::int64_t kMaxSweepMs = 1000, kMinSweepMs = 10;
constexpr std::int64_t kStillMs = 500;
constexpr std::size_t kStillWeight = 16;
constexpr int kMostTries = 8;  // to find one that has not greeted, for one that comes

// Often enough for the shorter of the two limits.
std::int64_t sweep_interval(const Limits& limits) {
  return std::clamp<std::int64_t>(std::min(limits.handshake_ms, limits.stall_ms) / 4, kMinSweepMs, kMaxSweepMs);
}

}  // namespace

void EventLoop::set_suspect(Connection& connection, bool suspect) {
  std::size_t& index = connection.loop.suspect_index;
  if (suspect == (index > 0)) {
    return;
  }
  if (suspect) {
    if (suspects_.empty()) {
      next_sweep_ms_ = work_.context.running_ms() + sweep_interval(loop_group_.limits);
    }
    suspects_.push_back(&connection);
    index = suspects_.size();
  } else {
    suspects_[index - 1] = suspects_.back();
    suspects_.back()->loop.suspect_index = index;
    suspects_.pop_back();
    index = 0;
  }
}

void EventLoop::note_pending(Connection& connection) {
  auto& here = connection.loop;
  here.pending = std::make_shared<PendingConnections::Ticket>(*this, connection, connection.peer().address);
  here.in_pending = pending_.insert(pending_.end(), &connection);
  if (const auto oldest = loop_group_.pending.enter(here.pending)) {
    oldest->loop.mailbox_.post([oldest] {
      if (oldest->connection != nullptr) {
        oldest->loop.close_if_silent(*oldest->connection);
      }
    });
  }
}

void EventLoop::forget_pending(Connection& connection) {
  auto& here = connection.loop;
  loop_group_.pending.leave(*here.pending);
  here.pending->connection = nullptr;
  here.pending.reset();
  pending_.erase(here.in_pending);
}

bool EventLoop::make_room() {
  // Only of those here: nobody is let in before another one has gone.
  for (int tries = 0; tries < kMostTries && !pending_.empty(); ++tries) {
    if (close_if_silent(*pending_.front())) {
      return true;
    }
  }
  return false;
}

bool EventLoop::close_if_silent(Connection& connection) {
  if (connection.keyspace().pause.paused()) {
    return false;
  }
  step(connection, EPOLLIN);  // it may have spoken, and not been heard yet
  if (connection.loop.closed) {
    return true;
  }
  if (!connection.greeted()) {
    close(connection, Refusal::kTooManyPending);
    return true;
  }
  return false;
}

void EventLoop::count_memory(Connection& connection) {
  auto& here = connection.loop;
  if (const std::size_t unfinished = connection.unfinished(); unfinished != here.unfinished) {
    unfinished_.fetch_add(unfinished - here.unfinished, std::memory_order_relaxed);  // modulo 2^64, down as well as up
    here.unfinished = unfinished;
  }
  if (const std::size_t held = connection.held(); held != here.held) {
    const bool more = held > here.held;
    loop_group_.buffered.fetch_add(held - here.held, std::memory_order_relaxed);
    here.held = held;
    if (more) {
      guard_memory();
    }
  }
}

void EventLoop::guard_memory() {
  if (!loop_group_.buffers_full() || loop_group_.shedding.exchange(true)) {
    return;
  }
  // Not whoever happens to be served now: the loop with the most closes the client with the most.
  EventLoop& worst = **std::max_element(loop_group_.loops.begin(), loop_group_.loops.end(), [](const auto& a, const auto& b) {
    return a->unfinished_.load(std::memory_order_relaxed) < b->unfinished_.load(std::memory_order_relaxed);
  });
  worst.mailbox_.post([&worst] { worst.shed_largest(); });
}

void EventLoop::shed_largest() {
  loop_group_.shedding.store(false);
  while (loop_group_.buffers_full() && !suspects_.empty()) {
    // Who stands still weighs more than who is just being served.
    const auto weight = [&](const Connection& each) {
      return each.loop.unfinished * (each.still_for(work_.context) > kStillMs ? kStillWeight : 1);
    };
    Connection& largest = **std::max_element(suspects_.begin(), suspects_.end(), [&](const auto* a, const auto* b) {
      return weight(*a) < weight(*b);
    });
    if (largest.loop.unfinished == 0) {
      return;
    }
    close(largest, Refusal::kBuffersFull);
  }
}

void EventLoop::sweep() {
  next_sweep_ms_ = work_.context.running_ms() + sweep_interval(loop_group_.limits);
  for (std::size_t i = suspects_.size(); i-- > 0;) {  // from the end: close() moves the last one here
    if (suspects_[i]->keyspace().pause.paused()) {
      continue;  // it is the server that they wait for
    }
    if (const Refusal why = suspects_[i]->overdue(work_.context); why != Refusal::kNone) {
      close(*suspects_[i], why);
    }
  }
  guard_memory();
}

}  // namespace rdzv
