#include "rdzv/event_loop.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <array>
#include <cerrno>
#include <new>
#include <system_error>

namespace rdzv {

namespace {

constexpr std::size_t kReadBuffer = 64 * 1024;
std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

EventLoop::EventLoop(Crew& crew, Desk& desk, std::uint32_t index)
    : crew_(crew),
      index_(index),
      work_{{crew.limits, counters_, desk, index, monotonic_ms(), {}, {}}, std::string(kReadBuffer, '\0'), {}, {}},
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      reserve_(open("/dev/null", O_RDONLY | O_CLOEXEC)) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = &mailbox_source_;
  if (!epoll_ || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, mailbox_.event_fd(), &event) < 0) {
    throw std::system_error(errno, std::generic_category(), "epoll");
  }
}

EventLoop::~EventLoop() { stop(); }

void EventLoop::start() {
  outgoing_.resize(crew_.loops.size());
  outgoing_pushes_.resize(crew_.loops.size());
  // Signals are for the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_getcpuclockid(thread_.native_handle(), &cpu_clock_);
  pthread_setname_np(thread_.native_handle(), ("rdzv-store-" + std::to_string(index_)).c_str());
}

void EventLoop::stop() {
  if (thread_.joinable()) {
    mailbox_.post([this] { stopping_ = true; });
    thread_.join();
  }
}

std::int64_t EventLoop::cpu_ns() const { return clock_ns(cpu_clock_); }

int EventLoop::timeout_ms() const {
  if (!again_.empty()) {
    return 0;
  }
  std::int64_t until = INT64_MAX;
  if (!suspects_.empty()) {
    until = next_sweep_ms_;
  }
  if (!sessions_.empty()) {
    until = std::min(until, sessions_.begin()->first);
  }
  if (accept_again_ms_ > 0) {
    until = std::min(until, accept_again_ms_);
  }
  if (!leaving_.empty()) {
    until = std::min(until, leaving_.begin()->first);
  }
  if (relay_) {
    until = std::min({until, relay_->next_ms(), upstream_->next_ms()});
  }
  return until == INT64_MAX ? -1 : static_cast<int>(std::max<std::int64_t>(0, until - work_.around.now_ms) + 1);
}

void EventLoop::run() {
  std::array<epoll_event, kEvents> events;
  while (!stopping_) {
    const int count = epoll_wait(epoll_.get(), events.data(), kEvents, timeout_ms());
    const std::int64_t begin = clock_ns(CLOCK_MONOTONIC);
    work_.around.now_ms = monotonic_ms();
    turn(count, events.data());
    counters_.turns.add(1);
    counters_.busy_ns.add(static_cast<std::uint64_t>(clock_ns(CLOCK_MONOTONIC) - begin));
  }
  listeners_.clear();
  while (!connections_here_.empty()) {
    close(*connections_here_.back(), Refusal::kNone);
  }
  graveyard_.clear();
}

void EventLoop::turn(int count, epoll_event* events) {
  // Wakes first: a client that hears of something later must not have its answer before. Tasks last: they may end what
  // this turn's events still name.
  ++work_.around.turn;
  Wakes wakes;
  std::vector<Mailbox::Task> tasks;
  if (mailbox_.full()) {
    Pushes pushes;
    mailbox_.take(wakes, pushes, tasks);
    for (const auto& waiter : wakes) {
      told(*waiter);
    }
    for (const auto& subscriber : pushes) {
      told(*subscriber);
    }
  }
  serve_again();
  for (int i = 0; i < count; ++i) {
    auto* const source = static_cast<Source*>(events[i].data.ptr);
    if (source->kind == Source::Kind::kConnection) {
      step(static_cast<Connection&>(*source), events[i].events);
    } else if (source->kind == Source::Kind::kListener) {
      accept_from(static_cast<Listener&>(*source));
    } else if (source->kind == Source::Kind::kUpstream) {
      upstream_->on_events(events[i].events, work_.around.now_ms);
    }
  }
  for (const auto& task : tasks) {
    task();
  }
  send_dirty();
  if (!suspects_.empty() && work_.around.now_ms >= next_sweep_ms_) {
    sweep();
  }
  if (accept_again_ms_ > 0 && work_.around.now_ms >= accept_again_ms_) {
    resume_accepting();
  }
  expire_sessions();
  expire_trunks();
  send_dirty();  // what closed sessions have left for others
  if (relay_) {
    finish_turn();
  }
  graveyard_.clear();
}

void EventLoop::step(Connection& connection, std::uint32_t events) {
  if (connection.loop.closed) {
    return;
  }
  try {
    bool alive = (events & EPOLLOUT) == 0 || connection.flush(work_);
    connection.resume(work_);
    alive = alive && ((events & ~EPOLLOUT) == 0 || connection.readable(work_));
    deliver();  // before the replies of whoever has set the keys
    // Replies to what came before an offence are sent.
    if (connection.flush(work_) && alive && connection.refusal() == Refusal::kNone) {
      settle(connection);
    } else {
      close(connection, connection.refusal());
    }
  } catch (const std::bad_alloc&) {
    close(connection, Refusal::kOutOfMemory);
  }
}

void EventLoop::serve_again() {
  std::vector<Connection*> now;
  now.swap(again_);
  for (Connection* connection : now) {
    connection->loop.again = false;
  }
  for (Connection* connection : now) {
    step(*connection, 0);
  }
}

void EventLoop::settle(Connection& connection) {
  count_memory(connection);
  set_suspect(connection, connection.suspect());
  auto& here = connection.loop;
  if (connection.lease() != nullptr) {
    note_session(connection);
  }
  if (connection.wants_turn() && !here.again) {
    here.again = true;
    again_.push_back(&connection);
  }
  if (const std::uint32_t interest = connection.interest(); interest != here.interest) {
    epoll_event event{};
    event.events = interest;
    event.data.ptr = static_cast<Source*>(&connection);
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.fd(), &event);
    here.interest = interest;
  }
}

void EventLoop::close(Connection& connection, Refusal why) {
  auto& here = connection.loop;
  if (here.closed) {
    return;
  }
  here.closed = true;
  set_suspect(connection, false);
  if (here.again) {
    std::erase(again_, &connection);
  }
  crew_.buffered.fetch_sub(here.held, std::memory_order_relaxed);
  unfinished_.fetch_sub(here.unfinished, std::memory_order_relaxed);
  crew_.connections.fetch_sub(1, std::memory_order_relaxed);
  connections_.fetch_sub(1, std::memory_order_relaxed);
  counters_.closed.add(1);
  if (why != Refusal::kNone) {
    refuse(&connection.peer(), why, connection.keyspace());
  }
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.fd(), nullptr);
  forget_session(connection);
  end_trunk(connection);
  connection.hang_up();
  auto& slot = connections_here_[here.index];
  graveyard_.push_back(std::move(slot));
  if (&slot != &connections_here_.back()) {
    slot = std::move(connections_here_.back());
    slot->loop.index = here.index;
  }
  connections_here_.pop_back();
}

}  // namespace rdzv
