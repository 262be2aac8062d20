#include "relay.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "clock.hpp"
#include "errors.hpp"
#include "load.hpp"
#include "poller.hpp"

namespace rdzv::load {

namespace {

constexpr std::size_t kListener = 0, kTimer = 1, kFirst = 2;  // what the poller calls them; then two for each link
constexpr double kForever_s = 1e9;
constexpr std::size_t kKeep = 64 * 1024;  // of a buffer that has been emptied

std::array<char, 256 * 1024> input;  // of the one thread

// A connection on one side. What could not be sent yet waits in `unsent`.
struct Side {
  int fd = -1;
  bool ended = false;        // nothing more comes from here
  bool end_to_send = false;  // after `unsent`
  bool end_sent = false;
  std::string unsent;
};

struct Link {
  ~Link() {
    for (const Side& side : sides) {
      if (side.fd >= 0) {
        ::close(side.fd);
      }
    }
  }
  std::size_t number = 0;
  std::array<Side, 2> sides;  // the client's, the server's
  bool broken = false;
};

// Bytes on their way to a side of a link; none: the end.
struct Chunk {
  std::uint64_t due_ns;
  std::shared_ptr<Link> link;
  std::size_t to;
  std::string bytes;
};

class Relay {
 public:
  Relay(int listener, const sockaddr_in& target, std::uint64_t delay_ns, std::function<void()> check)
      : listener_(listener), target_(target), delay_ns_(delay_ns), poller_(std::move(check)) {
    ::fcntl(listener_, F_SETFL, ::fcntl(listener_, F_GETFL) | O_NONBLOCK);
    timer_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (timer_ < 0) {
      throw LoadError(std::string("timerfd_create: ") + std::strerror(errno));
    }
    poller_.add(listener_, kListener);
    poller_.add(timer_, kTimer);
  }
  ~Relay() { ::close(timer_); }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  [[noreturn]] void serve() {
    for (;;) {
      poller_.poll(kForever_s, [this](std::size_t id, std::uint32_t events) { on_ready(id, events); },
                   [] { return false; });
    }
  }

 private:
  void on_ready(std::size_t id, std::uint32_t events) {
    if (id == kListener) {
      accept_all();
    } else if (id == kTimer) {
      std::uint64_t expired = 0;
      (void)!::read(timer_, &expired, sizeof expired);
      deliver();
    } else {
      const std::shared_ptr<Link> link = links_[(id - kFirst) / 2];
      if (link && !link->broken) {
        const std::size_t side = (id - kFirst) % 2;
        if ((events & EPOLLOUT) != 0) {
          flush(*link, side);
        }
        receive(link, side, (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
        forget_if_over(*link);
      }
    }
  }

  void accept_all() {
    for (;;) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) {
        if (errno == EAGAIN) {
          return;
        }
        if (errno == EINTR || errno == ECONNABORTED) {
          continue;
        }
        throw LoadError(std::string("accept: ") + std::strerror(errno));
      }
      open(fd);
    }
  }

  void open(int client) {
    auto link = std::make_shared<Link>();
    link->sides[0].fd = client;
    const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (server < 0) {
      throw LoadError(std::string("socket: ") + std::strerror(errno));
    }
    link->sides[1].fd = server;
    if (::connect(server, reinterpret_cast<const sockaddr*>(&target_), sizeof target_) != 0 && errno != EINPROGRESS) {
      return;  // which closes both
    }
    const int on = 1;
    link->number = links_.size();
    links_.push_back(link);
    for (std::size_t side = 0; side < 2; ++side) {
      ::setsockopt(link->sides[side].fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      poller_.add(link->sides[side].fd, kFirst + 2 * link->number + side);
    }
  }

  void receive(const std::shared_ptr<Link>& link, std::size_t from, bool gone) {
    Side& side = link->sides[from];
    while (!side.ended && !link->broken) {
      const ssize_t got = ::recv(side.fd, input.data(), input.size(), 0);
      if (got < 0 && (errno == EAGAIN || errno == ENOTCONN)) {
        return;
      }
      side.ended = got <= 0;
      const std::uint64_t now = now_ns();
      if (chunks_.empty()) {
        arm(now + delay_ns_);
      }
      chunks_.push_back({now + delay_ns_, link, 1 - from, std::string(input.data(), got > 0 ? std::size_t(got) : 0)});
      if (got > 0 && static_cast<std::size_t>(got) < input.size() && !gone) {
        return;  // that was all; what comes later makes another edge
      }
    }
  }

  // What is due. All chunks have the same delay, so they are in order.
  void deliver() {
    const std::uint64_t now = now_ns();
    while (!chunks_.empty() && chunks_.front().due_ns <= now) {
      const Chunk chunk = std::move(chunks_.front());
      chunks_.pop_front();
      send(*chunk.link, chunk.to, chunk.bytes);
      forget_if_over(*chunk.link);
    }
    if (!chunks_.empty()) {
      arm(chunks_.front().due_ns);
    }
  }

  void send(Link& link, std::size_t to, std::string_view bytes) {
    Side& side = link.sides[to];
    if (link.broken) {
      return;
    }
    side.end_to_send = side.end_to_send || bytes.empty();
    if (side.unsent.empty() && !bytes.empty()) {
      const ssize_t sent = ::send(side.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != ENOTCONN) {
        break_off(link);
        return;
      }
      bytes.remove_prefix(sent > 0 ? static_cast<std::size_t>(sent) : 0);
    }
    side.unsent += bytes;
    pass_end_on(side);
  }

  void flush(Link& link, std::size_t to) {
    Side& side = link.sides[to];
    std::size_t done = 0;
    while (done < side.unsent.size()) {
      const ssize_t sent = ::send(side.fd, side.unsent.data() + done, side.unsent.size() - done, MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != ENOTCONN) {
        break_off(link);
        return;
      }
      if (sent <= 0) {
        break;
      }
      done += static_cast<std::size_t>(sent);
    }
    side.unsent.erase(0, done);
    if (side.unsent.empty() && side.unsent.capacity() > kKeep) {
      side.unsent.shrink_to_fit();
    }
    pass_end_on(side);
  }

  void pass_end_on(Side& side) {
    if (side.end_to_send && side.unsent.empty() && !side.end_sent) {
      ::shutdown(side.fd, SHUT_WR);
      side.end_sent = true;
    }
  }

  // One side has gone: the other one hears of it as a reset.
  void break_off(Link& link) {
    link.broken = true;
    for (Side& side : link.sides) {
      const linger reset{1, 0};
      ::setsockopt(side.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      ::close(std::exchange(side.fd, -1));
    }
  }

  // Whoever still holds the link closes it.
  void forget_if_over(const Link& link) {
    if (link.broken || (link.sides[0].end_sent && link.sides[1].end_sent)) {
      links_[link.number].reset();
    }
  }

  void arm(std::uint64_t at_ns) {
    itimerspec when{};
    when.it_value.tv_sec = static_cast<time_t>(at_ns / 1'000'000'000);
    when.it_value.tv_nsec = static_cast<long>(at_ns % 1'000'000'000);
    ::timerfd_settime(timer_, TFD_TIMER_ABSTIME, &when, nullptr);
  }

  const int listener_;
  const sockaddr_in target_;
  const std::uint64_t delay_ns_;
  Poller poller_;
  int timer_ = -1;
  std::vector<std::shared_ptr<Link>> links_;  // by number; none where one is over
  std::deque<Chunk> chunks_;
};

}  // namespace

void serve_delayed(int listener, const std::string& host, std::uint16_t port, double delay_s,
                   std::function<void()> check) {
  sockaddr_in target{};
  target.sin_family = AF_INET;
  target.sin_port = htons(port);
  target.sin_addr = parse_address(host);
  Relay(listener, target, static_cast<std::uint64_t>(delay_s * 1e9), std::move(check)).serve();
}

}  // namespace rdzv::load
