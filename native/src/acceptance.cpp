// The accepting half of the event loop, and what keeps one client from hurting the others.
#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rdzv/event_loop.hpp"
#include "rdzv/peer.hpp"

namespace rdzv {

namespace {

constexpr std::int64_t kAcceptPauseMs = 100;

// Of a Unix socket: whether the process at the other end belongs to this user, or to root, who is not `alone`. Also notes
// which one it is.
bool known_user(int fd, Peer& peer, bool alone) {
  ucred who{};
  socklen_t size = sizeof who;
  peer.local = true;  // a client's end has no name, and no address family then
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0) {
    return false;
  }
  peer.pid.store(static_cast<std::uint32_t>(who.pid));
  return who.uid == geteuid() || (who.uid == 0 && !alone);
}

// Of TCP: the same. Who is not of this machine is.
bool known_socket(int fd, const Peer& peer) {
  const auto owner = peer_owner(fd);
  return owner ? *owner == geteuid() || *owner == 0 : !peer.is_loopback();
}

// Of TCP: whether it is a process of this machine and this user, and nobody else's.
bool own_socket(int fd) { return peer_owner(fd) == geteuid(); }

bool lets_in(const Listener& listener, int fd, Peer& peer) {
  const bool alone = listener.admit == Admit::kOwnUser;
  if (listener.local) {
    return known_user(fd, peer, alone);
  }
  return alone ? own_socket(fd) : !listener.own_user.load() || known_socket(fd, peer);
}

bool out_of_descriptors(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS; }

constexpr std::int64_t kMaxSweepMs = 1000, kMinSweepMs = 10;
constexpr std::int64_t kStillMs = 500;
constexpr std::size_t kStillWeight = 16;
constexpr int kMostTries = 8;  // to find one that has not greeted, for one that comes

// Often enough for the shorter of the two limits.
std::int64_t sweep_interval(const Limits& limits) {
  return std::clamp<std::int64_t>(std::min(limits.handshake_ms, limits.stall_ms) / 4, kMinSweepMs, kMaxSweepMs);
}

constexpr std::int64_t kPatienceMs = 2000;  // no loop is hung up by another one

}  // namespace

void EventLoop::listen(const std::shared_ptr<Listener>& listener) {
  listeners_.push_back(listener);
  if (accept_again_ms_ == 0) {
    resume_accepting();
  }
}

void EventLoop::unlisten(const Listener& listener) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener.fd.get(), nullptr);
  std::erase_if(listeners_, [&](const auto& each) { return each.get() == &listener; });
  for (std::size_t i = connections_here_.size(); i-- > 0;) {
    if (&connections_here_[i]->keyspace() == listener.keyspace.get()) {
      close(*connections_here_[i], Refusal::kNone);
    }
  }
}

void EventLoop::pause_accepting() {
  accept_again_ms_ = work_.context.now_ms + kAcceptPauseMs;
  for (const auto& listener : listeners_) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener->fd.get(), nullptr);
  }
}

void EventLoop::resume_accepting() {
  accept_again_ms_ = 0;
  for (const auto& listener : listeners_) {
    epoll_event event{};
    // All loops wait for connections, and one of them is woken for each.
    event.events = EPOLLIN | EPOLLEXCLUSIVE;
    event.data.ptr = static_cast<Source*>(listener.get());
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener->fd.get(), &event);  // fails harmlessly for those that are there
  }
}

void EventLoop::accept_from(Listener& listener) {
  for (std::size_t i = 0; i < kAcceptBatch; ++i) {
    if (listener.keyspace->pause.check()) {
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener.fd.get(), nullptr);  // until resume()
      return;
    }
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    UniqueFd fd(accept4(listener.fd.get(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (out_of_descriptors(errno)) {
        shed(listener);
      } else if (errno == ECONNABORTED || errno == EINTR) {
        continue;
      }
      return;
    }
    counters_.accepted.add(1);
    Peer peer = peer_of(address);
    if (!lets_in(listener, fd.get(), peer)) {
      refuse(&peer, Refusal::kForeignUser, *listener.keyspace, listener.admit != Admit::kAnyone);
      counters_.closed.add(1);
      continue;
    }
    if (!take(std::move(fd), peer, listener)) {
      return;
    }
  }
}

bool EventLoop::take(UniqueFd fd, const Peer& peer, Listener& listener) {
  const auto open = loop_group_.connections.fetch_add(1, std::memory_order_relaxed) + 1;
  if (open > loop_group_.max_connections && !make_room()) {
    loop_group_.connections.fetch_sub(1, std::memory_order_relaxed);
    counters_.closed.add(1);
    refuse(&peer, Refusal::kTooManyConnections, *listener.keyspace);
    return true;
  }
  const auto most = std::min(open, loop_group_.max_connections);
  std::uint32_t peak = loop_group_.peak.load(std::memory_order_relaxed);
  while (most > peak && !loop_group_.peak.compare_exchange_weak(peak, most, std::memory_order_relaxed)) {
  }
  // The loop with the fewest, so that a storm which one loop accepts is still shared by all.
  const auto least = std::min_element(loop_group_.loops.begin(), loop_group_.loops.end(), [](const auto& a, const auto& b) {
    return a->connections() < b->connections();
  });
  EventLoop& place = (*least)->connections() < connections() ? **least : *this;
  place.connections_.fetch_add(1, std::memory_order_relaxed);
  const auto found = std::find_if(listeners_.begin(), listeners_.end(), [&](const auto& l) { return l.get() == &listener; });
  const std::shared_ptr<Listener> shared = *found;
  if (&place == this) {
    adopt(std::move(fd), peer, shared);
  } else {
    // shared because std::function has to be copyable; a loop that stops instead still closes it
    auto travelling = std::make_shared<UniqueFd>(std::move(fd));
    place.mailbox_.post([&place, travelling, peer, shared] {
      place.adopt(std::move(*travelling), peer, shared);
    });
  }
  return true;
}

void EventLoop::adopt(UniqueFd fd, const Peer& peer, const std::shared_ptr<Listener>& listener) {
  const auto tls = listener->tls ? listener->tls->current() : nullptr;
  auto connection = std::make_unique<Connection>(std::move(fd), listener->keyspace, work_,
                                                 listener->admit == Admit::kToken, tls.get());
  connection->peer() = peer;
  connection->loop.index = connections_here_.size();
  connection->loop.interest = EPOLLIN;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = static_cast<Source*>(connection.get());
  connections_here_.push_back(std::move(connection));
  Connection& here = *connections_here_.back();
  if (listener->closed.load() || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, here.fd(), &event) < 0) {
    close(here, Refusal::kNone);
    return;
  }
  note_pending(here);
  settle(here);
}

void EventLoop::shed(Listener& listener) {
  // Closing one that has connected tells its client to try again; leaving it in the queue would leave it without an
  // answer, and torch's client waits for that without a limit.
  reserve_.reset();
  UniqueFd fd(accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const bool accepted = static_cast<bool>(fd);
  fd.reset();
  reserve_.reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (accepted) {
    refuse(nullptr, Refusal::kNoDescriptors, *listener.keyspace);
  }
  if (!accepted || !reserve_) {
    pause_accepting();  // another thread was faster; it is tried again soon
  }
}

void EventLoop::refuse(const Peer* peer, Refusal why, const Keyspace& keyspace, bool stranger) {
  counters_.refused[static_cast<std::size_t>(why)].add(1);
  if (why == Refusal::kRootLost) {  // said once, not for each of them
    return;
  }
  stranger = stranger || is_of_stranger(why);
  if (stranger && loop_group_.stranger_second.exchange(work_.context.now_ms / 1000) == work_.context.now_ms / 1000) {
    loop_group_.unsaid_strangers.fetch_add(1, std::memory_order_relaxed);
    return;  // once a second: all are counted
  }
  std::string line = "keyspace '" + keyspace.name() + "': closed a connection";
  if (peer != nullptr) {
    line += " from " + peer->endpoint();
    if (const auto pid = peer->pid.load(std::memory_order_relaxed); pid != 0) {
      line += " (pid " + std::to_string(pid) + ")";
    }
  }
  const std::uint64_t unsaid = stranger ? loop_group_.unsaid_strangers.exchange(0) : 0;
  const std::string more = unsaid > 0 ? " (" + std::to_string(unsaid) + " more since the last such line)" : "";
  loop_group_.log.write(line + ": " + std::string(text(why)) + std::string(advice(why)) + more, work_.context.now_ms);
}

// What keeps one client from hurting the others: those that the server waits for, for how long, and in how much memory.

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

// When the event loop answers questions: not before what had been sent to any loop by then is read.

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
