// The accepting half of the event loop.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "rdzv/event_loop.hpp"
#include "rdzv/socket_owner.hpp"

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

}  // namespace rdzv
