#include "echo.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "exchange.hpp"

namespace rdzv::load {

namespace {

struct Connection {
  std::array<char, 8> head{};  // of the message that is arriving
  std::size_t head_size = 0;
  std::size_t body_left = 0;
  std::size_t unsent = 0;  // zero bytes owed to a client whose socket is full
};

class Echo {
 public:
  explicit Echo(int listener) : listener_(listener), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    ::fcntl(listener_, F_SETFL, ::fcntl(listener_, F_GETFL) | O_NONBLOCK);
    control(EPOLL_CTL_ADD, listener_, EPOLLIN);
  }

  [[noreturn]] void serve() {
    std::array<epoll_event, 256> events;
    for (;;) {
      const int ready = ::epoll_wait(epoll_, events.data(), events.size(), -1);
      if (ready < 0 && errno != EINTR) {
        throw LoadError(std::string("epoll_wait: ") + std::strerror(errno));
      }
      for (int i = 0; i < ready; ++i) {
        const epoll_event& event = events[static_cast<std::size_t>(i)];
        if (event.data.fd == listener_) {
          accept();
        } else if (!handle(event.data.fd, event.events)) {
          ::close(event.data.fd);
        }
      }
    }
  }

 private:
  void control(int operation, int fd, std::uint32_t what) {
    epoll_event event{};
    event.events = what;
    event.data.fd = fd;
    if (::epoll_ctl(epoll_, operation, fd, &event) != 0) {
      throw LoadError(std::string("epoll_ctl: ") + std::strerror(errno));
    }
  }

  void accept() {
    for (;;) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) {
        return;
      }
      const int on = 1;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      connections_.resize(std::max(connections_.size(), static_cast<std::size_t>(fd) + 1));
      connections_[static_cast<std::size_t>(fd)] = Connection{};
      control(EPOLL_CTL_ADD, fd, EPOLLIN);
    }
  }

  // False: the connection is over.
  bool handle(int fd, std::uint32_t events) {
    Connection& connection = connections_[static_cast<std::size_t>(fd)];
    if (connection.unsent > 0 && (events & EPOLLOUT) != 0) {
      if (!send(fd, connection, std::exchange(connection.unsent, 0))) {
        return false;
      }
      if (connection.unsent == 0) {
        control(EPOLL_CTL_MOD, fd, EPOLLIN);
      }
    }
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) {
      return true;
    }
    const ssize_t got = ::recv(fd, input_.data(), input_.size(), 0);
    if (got <= 0) {
      return got < 0 && errno == EAGAIN;
    }
    return take(fd, connection, {input_.data(), static_cast<std::size_t>(got)});
  }

  bool take(int fd, Connection& connection, std::string_view part) {
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
        const std::uint32_t reply = number(connection, 4);
        if (reply > 0 && !send(fd, connection, reply)) {
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

  bool send(int fd, Connection& connection, std::size_t count) {
    if (connection.unsent > 0) {
      connection.unsent += count;
      return true;
    }
    while (count > 0) {
      const std::string_view reply = zeros(std::min(count, kEchoLimit));
      const ssize_t sent = ::send(fd, reply.data(), reply.size(), MSG_NOSIGNAL);
      if (sent < 0) {
        if (errno != EAGAIN) {
          return false;
        }
        connection.unsent = count;
        control(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT);
        return true;
      }
      count -= static_cast<std::size_t>(sent);
    }
    return true;
  }

  const int listener_;
  const int epoll_;
  std::vector<Connection> connections_;  // by file descriptor
  std::array<char, 64 * 1024> input_;
};

}  // namespace

void serve_echo(int listener) { Echo(listener).serve(); }

}  // namespace rdzv::load
