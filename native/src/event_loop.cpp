#include "rdzv/event_loop.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <fcntl.h>
#include <iterator>
#include <new>
#include <pthread.h>
#include <signal.h>
#include <system_error>
#include <time.h>

namespace rdzv {

namespace {

constexpr std::size_t kReadBuffer = 64 * 1024;
constexpr std::int64_t kLateMs = 50;       // a turn that comes later than this is no matter of scheduling
constexpr std::int64_t kWorthSayingMs = 1000;
constexpr std::int64_t kMeasuredMs = 10;   // how old the figure of the processor's time may be

std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

constexpr int kMostReads = 64;  // of who has to have said something, and may have said much before it

}  // namespace

EventLoop::EventLoop(LoopGroup& loop_group, ServerAccess& server, std::uint32_t index)
    : loop_group_(loop_group),
      index_(index),
      work_{{loop_group.limits, counters_, server, index, monotonic_ms(), {}, {}}, std::string(kReadBuffer, '\0'), {}, {}},
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
  outgoing_.resize(loop_group_.loops.size());
  outgoing_pushes_.resize(loop_group_.loops.size());
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
  const auto by_running_time = [&](std::int64_t when_ms) {
    until = std::min(until, when_ms + work_.context.stalled_ms);
  };
  // Not in one go: of a time for which the loop stands still within a wait, the part that is longer is seen.
  const auto in_steps = [&](std::int64_t when_ms) {
    const std::int64_t left = when_ms - work_.context.running_ms();
    by_running_time(left > kLateMs ? work_.context.running_ms() + std::max(kLateMs, left / 4) : when_ms);
  };
  if (!waiting_.empty()) {
    by_running_time(patience_ends_ms_);
  }
  if (!suspects_.empty()) {
    by_running_time(next_sweep_ms_);
  }
  if (!sessions_.empty()) {
    in_steps(sessions_.begin()->first);
  }
  if (!leaving_.empty()) {
    in_steps(leaving_.begin()->first);
  }
  if (accept_again_ms_ > 0) {
    until = std::min(until, accept_again_ms_);
  }
  for (const auto& listener : listeners_) {
    if (const std::int64_t tick_ms = listener->keyspace->pause.tick_ms(); tick_ms > 0) {
      until = std::min(until, work_.context.now_ms + tick_ms);
    }
  }
  if (relay_) {
    until = std::min({until, relay_->next_ms(), upstream_->next_ms()});
  }
  return until == INT64_MAX ? -1 : static_cast<int>(std::max<std::int64_t>(0, until - work_.context.now_ms) + 1);
}

void EventLoop::run() {
  std::array<epoll_event, kEvents> events;
  while (!stopping_) {
    int wait_ms = timeout_ms();
    const std::uint64_t asked = fall_asleep(wait_ms);
    const int count = epoll_wait(epoll_.get(), events.data(), kEvents, wait_ms);
    const std::int64_t begin = clock_ns(CLOCK_MONOTONIC);
    begin_turn(wait_ms);
    turn(count, events.data(), asked);
    counters_.turns.add(1);
    counters_.busy_ns.add(static_cast<std::uint64_t>(clock_ns(CLOCK_MONOTONIC) - begin));
  }
  listeners_.clear();
  while (!connections_here_.empty()) {
    close(*connections_here_.back(), Refusal::kNone);
  }
  graveyard_.clear();
}

void EventLoop::begin_turn(int wait_ms) {
  const std::int64_t now_ms = monotonic_ms();
  std::int64_t late_ms = wait_ms < 0 ? 0 : now_ms - work_.context.now_ms - wait_ms;
  work_.context.now_ms = now_ms;
  if (now_ms - measured_ms_ >= kMeasuredMs) {
    measured_ms_ = now_ms;
    const std::int64_t cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    late_ms -= (cpu_ns - std::exchange(measured_cpu_ns_, cpu_ns)) / 1'000'000;  // it had work to do
  }
  if (late_ms > kLateMs) {
    work_.context.stalled_ms += late_ms;
    counters_.stalled_ms.add(static_cast<std::uint64_t>(late_ms));
    for (const auto& [when_ms, connection] : sessions_) {
      connection->postpone_recalls(late_ms);
    }
    if (late_ms >= kWorthSayingMs && index_ == 0) {
      loop_group_.log.write("this process stood still for " + std::to_string(late_ms) + " ms; nobody is given up because of that",
                      now_ms);
    }
  }
  for (const auto& listener : listeners_) {
    listener->keyspace->pause.check();  // before anybody is served
  }
}

void EventLoop::turn(int count, epoll_event* events, std::uint64_t asked) {
  state_.store(State::kReading);
  // Wakes first: a client that hears of something later must not have its answer before. Tasks last: they may end what
  // this turn's events still name.
  ++work_.context.turn;
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
  due_.insert(due_.end(), again_.begin(), again_.end());
  again_.clear();
  for (int i = 0; i < count; ++i) {
    auto* const source = static_cast<Source*>(events[i].data.ptr);
    if (source->kind == Source::Kind::kConnection) {
      auto& connection = static_cast<Connection&>(*source);
      if (!connection.held_back()) {
        // the last one to be read, of the only loop, need not wait for others
        const bool last = i + 1 == count && loop_group_.loops.size() == 1;
        step(connection, events[i].events, last ? Questions::kIfAlone : Questions::kLater);
      } else if (awaits()) {
        watch(connection, 0);  // until it has its answer
      }
    } else if (source->kind == Source::Kind::kListener) {
      accept_from(static_cast<Listener&>(*source));
    } else if (source->kind == Source::Kind::kUpstream) {
      upstream_->on_events(events[i].events, work_.context.now_ms);
    }
  }
  state_.store(State::kAnswering);
  for (; asked != 0; asked &= asked - 1) {
    loop_group_.loops[static_cast<std::size_t>(std::countr_zero(asked))]->caught_up();
  }
  answer_questions();
  for (const auto& task : tasks) {
    task();
  }
  send_dirty();
  if (!suspects_.empty() && work_.context.running_ms() >= next_sweep_ms_) {
    sweep();
  }
  if (accept_again_ms_ > 0 && work_.context.now_ms >= accept_again_ms_) {
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

void EventLoop::step(Connection& connection, std::uint32_t events, Questions questions) {
  if (connection.loop.closed || parked(connection)) {
    return;
  }
  try {
    bool alive = (events & EPOLLOUT) == 0 || connection.flush(work_);
    connection.resume(work_, questions);
    const bool reads = (events & ~EPOLLOUT) != 0 || connection.wants_room();
    alive = alive && (!reads || connection.readable(work_, questions));
    deliver();  // before the replies of whoever has set the keys
    if (parked(connection)) {
      return;
    }
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

bool EventLoop::parked(Connection& connection) {
  if (!connection.pauses()) {
    return false;
  }
  if (!std::exchange(connection.loop.parked, true)) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.fd(), nullptr);
  }
  return true;
}

void EventLoop::resume(const Keyspace& keyspace) {
  if (accept_again_ms_ == 0) {
    resume_accepting();
  }
  for (std::size_t i = connections_here_.size(); i-- > 0;) {  // from the end: close() moves the last one here
    Connection& connection = *connections_here_[i];
    if (&connection.keyspace() == &keyspace && std::exchange(connection.loop.parked, false)) {
      epoll_event event{};
      event.events = connection.loop.interest;
      event.data.ptr = static_cast<Source*>(&connection);
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.fd(), &event);
      connection.excuse(work_.context);
      step(connection, connection.reads() ? EPOLLIN | EPOLLOUT : EPOLLOUT);
    }
  }
}

void EventLoop::settle(Connection& connection) {
  count_memory(connection);
  set_suspect(connection, connection.suspect());
  auto& here = connection.loop;
  if (here.pending && connection.greeted()) {
    forget_pending(connection);
  }
  if (connection.lease() != nullptr) {
    note_session(connection);
    note_recall(connection);
  }
  if (connection.wants_turn() && !here.again) {
    here.again = true;
    (connection.asks_alone() ? due_ : again_).push_back(&connection);
  }
  watch(connection, connection.interest());
}

void EventLoop::watch(Connection& connection, std::uint32_t events) {
  if (events != connection.loop.interest) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = static_cast<Source*>(&connection);
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.fd(), &event);
    connection.loop.interest = events;
  }
}

void EventLoop::close(Connection& connection, Refusal why) {
  auto& here = connection.loop;
  if (here.closed) {
    return;
  }
  here.closed = true;
  set_suspect(connection, false);
  if (here.pending) {
    forget_pending(connection);
  }
  if (here.again) {
    for (auto* const list : {&again_, &due_, &waiting_}) {
      std::erase(*list, &connection);
    }
  }
  loop_group_.buffered.fetch_sub(here.held, std::memory_order_relaxed);
  unfinished_.fetch_sub(here.unfinished, std::memory_order_relaxed);
  loop_group_.connections.fetch_sub(1, std::memory_order_relaxed);
  connections_.fetch_sub(1, std::memory_order_relaxed);
  counters_.closed.add(1);
  if (why != Refusal::kNone) {
    refuse(&connection.peer(), why, connection.keyspace(), connection.is_strangers());
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

// What an event loop tells those who wait or watch: what was done for others.

void EventLoop::deliver() {
  auto& late = work_.context.wakes;
  work_.wakes.insert(work_.wakes.end(), std::make_move_iterator(late.begin()), std::make_move_iterator(late.end()));
  late.clear();
  // what a trunk is told of a wake is a push to its connection
  tell_trunks(work_.wakes, work_.context.pushes);
  deliver_pushes();
  if (work_.wakes.empty()) {
    return;
  }
  counters_.wakes.add(work_.wakes.size());
  for (auto& waiter : work_.wakes) {
    if (relay_ && waiter->writes) {
      relay_->given_up(*waiter);
    } else if (waiter->loop == index_) {
      told(*waiter);
    } else {
      outgoing_[waiter->loop].push_back(std::move(waiter));
    }
  }
  work_.wakes.clear();
  for (std::size_t loop = 0; loop < outgoing_.size(); ++loop) {
    if (!outgoing_[loop].empty()) {
      loop_group_.loops[loop]->mailbox().post(std::move(outgoing_[loop]));
    }
  }
}

void EventLoop::send_dirty() {
  deliver();
  while (!dirty_.empty()) {
    std::vector<Connection*> now;
    now.swap(dirty_);
    for (Connection* connection : now) {
      connection->loop.dirty = false;
      step(*connection, EPOLLOUT);  // which may set keys in its turn, if requests had to wait for these replies
    }
    deliver();
  }
}

void EventLoop::told(const Waiter& waiter) {
  auto* const connection = static_cast<Connection*>(waiter.owner);
  if (connection != nullptr && !connection->loop.closed && connection->woken(waiter)) {
    mark_dirty(*connection);
  }
}

void EventLoop::mark_dirty(Connection& connection) {
  if (!connection.loop.dirty) {
    connection.loop.dirty = true;
    dirty_.push_back(&connection);
  }
}

void EventLoop::told(const Subscriber& subscriber) {
  auto* const connection = static_cast<Connection*>(subscriber.owner);
  if (connection != nullptr && !connection->loop.closed && connection->pushed()) {
    mark_dirty(*connection);
  }
}

void EventLoop::deliver_pushes() {
  auto& pushes = work_.context.pushes;
  if (pushes.empty()) {
    return;
  }
  for (auto& subscriber : pushes) {
    if (subscriber->loop == index_) {
      told(*subscriber);
    } else {
      outgoing_pushes_[subscriber->loop].push_back(std::move(subscriber));
    }
  }
  pushes.clear();
  for (std::size_t loop = 0; loop < outgoing_pushes_.size(); ++loop) {
    if (!outgoing_pushes_[loop].empty()) {
      loop_group_.loops[loop]->mailbox().post(std::move(outgoing_pushes_[loop]));
    }
  }
}

// Sessions and trunks that fall silent, on their event loop.

void EventLoop::note_session(Connection& connection) {
  Lease& lease = *connection.lease();
  if (lease.listed_ms < 0) {
    lease.listed_ms = std::min(connection.lease_ends_ms(), recall_due_ms(connection));
    sessions_.emplace(lease.listed_ms, &connection);
  }
}

void EventLoop::forget_session(Connection& connection) {
  if (const Lease* const lease = connection.lease(); lease != nullptr && lease->listed_ms >= 0) {
    sessions_.erase({lease->listed_ms, &connection});
  }
}

std::int64_t EventLoop::recall_due_ms(const Connection& connection) const {
  const std::int64_t due_ms = connection.recall_due_ms();
  return due_ms == INT64_MAX ? due_ms : due_ms - work_.context.stalled_ms;
}

void EventLoop::note_recall(Connection& connection) {
  if (connection.is_trunk() && recall_due_ms(connection) < connection.lease()->listed_ms) {
    forget_session(connection);
    connection.lease()->listed_ms = -1;
    note_session(connection);
  }
}

void EventLoop::expire_sessions() {
  // Whoever was heard meanwhile is put where it belongs now: a keep-alive itself has changed nothing here.
  const std::int64_t now_ms = work_.context.running_ms();
  while (!sessions_.empty() && sessions_.begin()->first <= now_ms) {
    Connection& connection = *sessions_.begin()->second;
    if (connection.keyspace().pause.paused()) {
      connection.excuse(work_.context);
    }
    const auto keeps = [&] { return !connection.loop.closed && recall_due_ms(connection) <= now_ms; };
    if ((connection.lease_ends_ms() <= now_ms || keeps()) && connection.reads()) {
      step(connection, EPOLLIN);  // what has come and was not read yet, because this loop was late, counts
      for (int i = 0; i < kMostReads && keeps() && connection.reads(); ++i) {
        step(connection, EPOLLIN);
      }
    }
    if (connection.loop.closed) {
      continue;
    }
    if (keeps()) {
      connection.trunk()->distrust(work_.context.wakes);
      close(connection, Refusal::kKeepsValue);
      continue;
    }
    if (connection.lease_ends_ms() <= now_ms) {
      close(connection, connection.is_trunk() ? Refusal::kTrunkSilent : Refusal::kSessionExpired);
      continue;
    }
    forget_session(connection);
    connection.lease()->listed_ms = -1;
    note_session(connection);
  }
}

void EventLoop::end_trunk(Connection& connection) {
  if (const auto trunk = connection.end()) {
    const std::int64_t now_ms = work_.context.running_ms();
    leaving_.emplace(std::max(trunk->held_until_ms(), now_ms), trunk);
    leaving_.emplace(now_ms + trunk->traits().grace_ms, trunk);
  }
}

void EventLoop::expire_trunks() {
  const std::int64_t now_ms = work_.context.running_ms();
  while (!leaving_.empty() && leaving_.begin()->first <= now_ms) {
    const auto trunk = leaving_.begin()->second;
    leaving_.erase(leaving_.begin());
    if (trunk->keyspace().pause.paused()) {  // its proxy could not come back meanwhile
      leaving_.emplace(now_ms + trunk->traits().grace_ms, trunk);
      continue;
    }
    // its proxy may have come back since, and have left again: then another entry is about that
    const auto keys = trunk->expire(now_ms, work_.context.wakes);
    for (const std::string& key : keys) {
      if (relay_) {
        relay_->unwant(key);
      }
    }
  }
}

// What the event loop of a proxy does besides.

void EventLoop::become_proxy(Upstream& upstream, const std::shared_ptr<ServedKeyspace>& keys) {
  relay_ = std::make_unique<Relay>(static_cast<Host&>(*this), work_.context, keys, upstream);
  upstream_ = &upstream;
  work_.context.relay = relay_.get();
  upstream.start(*relay_, epoll_.get(), work_.context.now_ms);
}

void EventLoop::answer(void* connection, std::string_view raw) {
  auto& client = *static_cast<Connection*>(connection);
  if (!client.loop.closed && client.refusal() == Refusal::kNone) {
    client.answered(raw);
    mark_dirty(client);
  }
}

void EventLoop::go_on(void* connection) {
  auto& client = *static_cast<Connection*>(connection);
  if (!client.loop.closed) {
    client.go_on();
    mark_dirty(client);
  }
}

void EventLoop::refuse(void* connection, Refusal why) {
  auto& client = *static_cast<Connection*>(connection);
  if (!client.loop.closed) {
    client.refuse(why);
    mark_dirty(client);
  }
}

void EventLoop::close_all(const std::string& why) {
  for (const auto& client : connections_here_) {
    refuse(client.get(), Refusal::kRootLost);  // closed at the end of the turn: one of them may be being served
  }
  loop_group_.log.always("lost: " + why);
}

std::unordered_set<std::uint64_t> EventLoop::cut_trunks() {
  std::unordered_set<std::uint64_t> cut;
  for (const auto& client : connections_here_) {
    if (client->is_trunk() && client->refusal() == Refusal::kNone) {
      cut.insert(client->token());
      refuse(client.get(), Refusal::kTrunkSilent);
    }
  }
  return cut;
}

void EventLoop::finish_turn() {
  std::uint64_t requests = 0;
  for (const Count& count : counters_.requests) {
    requests += count.get();
  }
  do {
    send_dirty();
    graveyard_.clear();  // with what they have waited for
    relay_->end_turn();
    upstream_->end_turn(work_.context.now_ms, requests);
  } while (!dirty_.empty() || !work_.wakes.empty() || !work_.context.wakes.empty() || !work_.context.pushes.empty());
}

}  // namespace rdzv
