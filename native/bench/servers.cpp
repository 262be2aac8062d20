#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "load.hpp"

namespace rdzv::load {

namespace {

void no_delay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// False: the other side has gone.
bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

// A level-triggered epoll loop around a listening socket.
class Loop {
 public:
  explicit Loop(int listener) : listener_(listener), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    ::fcntl(listener_, F_SETFL, ::fcntl(listener_, F_GETFL) | O_NONBLOCK);
    control(EPOLL_CTL_ADD, listener_, EPOLLIN);
  }

  void control(int operation, int fd, std::uint32_t what) {
    epoll_event event{};
    event.events = what;
    event.data.fd = fd;
    if (::epoll_ctl(epoll_, operation, fd, &event) != 0) {
      fail("epoll_ctl");
    }
  }

  // `on_new(fd)` gets the accepted sockets; `on_ready(fd)` is called when any of them, or others, can be read.
  template <typename OnNew, typename OnReady>
  [[noreturn]] void serve(OnNew on_new, OnReady on_ready) {
    std::array<epoll_event, 256> events;
    for (;;) {
      const int ready = ::epoll_wait(epoll_, events.data(), events.size(), -1);
      if (ready < 0 && errno != EINTR) {
        fail("epoll_wait");
      }
      for (int i = 0; i < ready; ++i) {
        const epoll_event& event = events[static_cast<std::size_t>(i)];
        if (event.data.fd != listener_) {
          on_ready(event.data.fd);
          continue;
        }
        for (int fd = 0; (fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
          no_delay(fd);
          on_new(fd);
          control(EPOLL_CTL_ADD, fd, EPOLLIN);
        }
      }
    }
  }

 private:
  const int listener_;
  const int epoll_;
};

struct Connection {
  std::array<char, 8> head{};  // of the message that is arriving
  std::size_t head_size = 0;
  std::size_t body_left = 0;
};

// Sends block, here and in the relay: both who connect here and the server read whatever comes, so none of them can
// hold up another for long.
class Echo {
 public:
  explicit Echo(int listener) : loop_(listener) {}

  [[noreturn]] void serve() {
    loop_.serve(
        [this](int fd) {
          connections_.resize(std::max(connections_.size(), static_cast<std::size_t>(fd) + 1));
          connections_[static_cast<std::size_t>(fd)] = Connection{};
        },
        [this](int fd) {
          const ssize_t got = ::recv(fd, input_.data(), input_.size(), MSG_DONTWAIT);
          if (got < 0 && errno == EAGAIN) {
            return;
          }
          if (got <= 0 || !take(fd, {input_.data(), static_cast<std::size_t>(got)})) {
            ::close(fd);
          }
        });
  }

 private:
  // False: the connection is over.
  bool take(int fd, std::string_view part) {
    Connection& connection = connections_[static_cast<std::size_t>(fd)];
    while (!part.empty()) {
      if (connection.head_size < connection.head.size()) {
        const std::size_t count = std::min(part.size(), connection.head.size() - connection.head_size);
        std::memcpy(connection.head.data() + connection.head_size, part.data(), count);
        connection.head_size += count;
        part.remove_prefix(count);
        if (connection.head_size < connection.head.size()) {
          return true;
        }
        const std::uint32_t length = number(connection, 0);
        if (length < connection.head.size() || number(connection, 4) > kEchoLimit) {
          return false;
        }
        connection.body_left = length - connection.head.size();
      }
      const std::size_t count = std::min(part.size(), connection.body_left);
      connection.body_left -= count;
      part.remove_prefix(count);
      if (connection.body_left == 0) {
        connection.head_size = 0;
        if (!send_all(fd, zeros(number(connection, 4)))) {
          return false;
        }
      }
    }
    return true;
  }

  static std::uint32_t number(const Connection& connection, std::size_t at) {
    std::uint32_t value = 0;
    std::memcpy(&value, connection.head.data() + at, sizeof value);
    return value;
  }

  Loop loop_;
  std::vector<Connection> connections_;  // by file descriptor
  std::array<char, 64 * 1024> input_;
};

class Relay {
 public:
  Relay(int listener, const Place& place, std::uint64_t delay_ns)
      : loop_(listener), place_(place), delay_ns_(delay_ns), timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) {
    if (timer_ < 0) {
      fail("timerfd_create");
    }
    loop_.control(EPOLL_CTL_ADD, timer_, EPOLLIN);
  }

  [[noreturn]] void serve() {
    loop_.serve(
        [this](int fd) { open(fd); },
        [this](int fd) {
          if (fd == timer_) {
            std::uint64_t expired = 0;
            (void)!::read(timer_, &expired, sizeof expired);
            deliver();
          } else {
            receive(fd);
          }
        });
  }

 private:
  // One side of a connection through the relay.
  struct Side {
    int other = -1;
    bool ended = false;  // it has been told that nothing more comes
  };
  // Bytes on their way to a side; none: the end.
  struct Chunk {
    std::uint64_t due_ns;
    int to;
    std::string bytes;
  };

  void open(int client) {
    const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server < 0) {
      fail("socket");
    }
    no_delay(server);
    sides_[client] = {server};
    sides_[server] = {client};
    if (::connect(server, reinterpret_cast<const sockaddr*>(&place_.address), place_.size) != 0) {
      ::shutdown(client, SHUT_RDWR);  // which is read as its end, and the server's too
    }
    loop_.control(EPOLL_CTL_ADD, server, EPOLLIN);
  }

  void receive(int fd) {
    const ssize_t got = ::recv(fd, input_.data(), input_.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) {
      return;
    }
    const std::uint64_t due = now_ns() + delay_ns_;
    if (chunks_.empty()) {
      arm(due);
    }
    chunks_.push_back({due, sides_.at(fd).other, std::string(input_.data(), got > 0 ? std::size_t(got) : 0)});
    if (got <= 0) {  // nothing more comes from here; a reset is passed on as an end
      loop_.control(EPOLL_CTL_DEL, fd, 0);
    }
  }

  // What is due. All chunks have the same delay, so they are in order.
  void deliver() {
    const std::uint64_t now = now_ns();
    while (!chunks_.empty() && chunks_.front().due_ns <= now) {
      const Chunk chunk = std::move(chunks_.front());
      chunks_.pop_front();
      if (chunk.bytes.empty()) {
        end(chunk.to);
      }
      send_all(chunk.to, chunk.bytes);  // who has gone gets no more
    }
    if (!chunks_.empty()) {
      arm(chunks_.front().due_ns);
    }
  }

  void end(int fd) {
    ::shutdown(fd, SHUT_WR);
    Side& side = sides_.at(fd);
    side.ended = true;
    if (const int other = side.other; sides_.at(other).ended) {
      for (const int each : {fd, other}) {
        ::close(each);
        sides_.erase(each);
      }
    }
  }

  void arm(std::uint64_t at_ns) {
    itimerspec when{};
    when.it_value.tv_sec = static_cast<time_t>(at_ns / 1'000'000'000);
    when.it_value.tv_nsec = static_cast<long>(at_ns % 1'000'000'000);
    ::timerfd_settime(timer_, TFD_TIMER_ABSTIME, &when, nullptr);
  }

  Loop loop_;
  const Place place_;
  const std::uint64_t delay_ns_;
  const int timer_;
  std::map<int, Side> sides_;  // by file descriptor
  std::deque<Chunk> chunks_;
  std::array<char, 256 * 1024> input_;
};

}  // namespace

void serve_echo(int listener) { Echo(listener).serve(); }

void serve_delayed(int listener, const std::string& place, double delay_s) {
  Relay(listener, parse_place(place), static_cast<std::uint64_t>(delay_s * 1e9)).serve();
}

}  // namespace rdzv::load
