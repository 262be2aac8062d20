#include "socket.hpp"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "errors.hpp"

namespace rdzv::load {

namespace {

std::array<char, 256 * 1024> input;  // of the one thread that drives the load

[[noreturn]] void fail(std::string_view what) { throw LoadError(std::string(what) + ": " + std::strerror(errno)); }

[[noreturn]] void lost(std::string_view what, int error) {
  throw ConnectionLost(std::string(what) + ": " + std::strerror(error));
}

void set_option(int fd, int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof value); }

}  // namespace

Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)), unsent_(std::move(other.unsent_)) {}

void Socket::open(sa_family_t family, const std::optional<in_addr>& source) {
  fd_ = ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) {
    fail("socket");
  }
  if (family == AF_INET) {
    set_option(fd_, IPPROTO_TCP, TCP_NODELAY, 1);
  }
  if (source) {
    set_option(fd_, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_addr = *source;
    if (::bind(fd_, reinterpret_cast<const sockaddr*>(&from), sizeof from) != 0) {
      fail("bind");
    }
  }
}

void Socket::connect(const Place& server) {
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&server.address), server.size) != 0 && errno != EINPROGRESS) {
    lost("connect", errno);
  }
}

void Socket::established() const {
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) {
    lost("connect", error);
  }
}

void Socket::close() noexcept {
  if (fd_ >= 0) {
    const linger reset{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    ::close(fd_);
    fd_ = -1;
    unsent_.clear();
  }
}

void Socket::send(std::string_view bytes) {
  if (unsent_.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
      lost("send", errno);
    }
    bytes.remove_prefix(sent > 0 ? static_cast<std::size_t>(sent) : 0);
  }
  unsent_ += bytes;
}

void Socket::flush() {
  while (!unsent_.empty()) {
    const ssize_t sent = ::send(fd_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
      lost("send", errno);
    }
    if (sent <= 0) {
      return;
    }
    unsent_.erase(0, static_cast<std::size_t>(sent));
  }
}

void Socket::read(std::uint32_t events, const std::function<void(std::string_view)>& sink) {
  const bool gone = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  while (fd_ >= 0) {
    const ssize_t got = ::recv(fd_, input.data(), input.size(), 0);
    if (got < 0) {
      if (errno != EAGAIN) {
        lost("recv", errno);
      }
      return;
    }
    if (got == 0) {
      throw ConnectionLost("closed by the server");
    }
    sink({input.data(), static_cast<std::size_t>(got)});
    if (static_cast<std::size_t>(got) < input.size() && !gone) {
      return;  // that was all; what comes later makes another edge
    }
  }
}

}  // namespace rdzv::load
