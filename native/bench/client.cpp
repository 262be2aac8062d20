#include "client.hpp"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "clock.hpp"
#include "errors.hpp"

namespace rdzv::load {

namespace {

std::array<char, 256 * 1024> input;  // of the one thread that drives the load

[[noreturn]] void fail(std::string_view what) { throw LoadError(std::string(what) + ": " + std::strerror(errno)); }

[[noreturn]] void lost(std::string_view what, int error) {
  throw ConnectionLost(std::string(what) + ": " + std::strerror(error));
}

std::string hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += text.empty() ? "" : " ";
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
  }
  return text.empty() ? "nothing" : text;
}

void set_option(int fd, int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof value); }

}  // namespace

Client::Client(Client&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      timed_(other.timed_),
      reply_(other.reply_),
      received_(other.received_),
      number_(other.number_),
      sent_ns_(other.sent_ns_),
      name_(other.name_),
      unsent_(std::move(other.unsent_)) {}

void Client::open(sa_family_t family, const std::optional<in_addr>& source) {
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

void Client::connect(const Place& server) {
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&server.address), server.size) != 0 && errno != EINPROGRESS) {
    lost("connect", errno);
  }
}

void Client::established() const {
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) {
    lost("connect", error);
  }
}

void Client::close() noexcept {
  if (fd_ >= 0) {
    const linger reset{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    ::close(fd_);
    fd_ = -1;
  }
}

void Client::send(const Exchange& exchange) {
  if (exchange.reply().size() > 0) {
    reply_ = exchange.reply();
    received_ = 0;
    name_ = exchange.name();
    timed_ = exchange.timed();
    sent_ns_ = now_ns();
  }
  std::string_view bytes = exchange.request();
  if (unsent_.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
      lost("send", errno);
    }
    bytes.remove_prefix(sent > 0 ? static_cast<std::size_t>(sent) : 0);
  }
  unsent_ += bytes;
}

void Client::flush() {
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

bool Client::receive(std::uint32_t events) {
  const bool waited = waiting();
  const bool gone = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  for (;;) {
    const ssize_t got = ::recv(fd_, input.data(), input.size(), 0);
    if (got < 0) {
      if (errno != EAGAIN) {
        lost("recv", errno);
      }
      break;
    }
    if (got == 0) {
      throw ConnectionLost("closed by the server");
    }
    take({input.data(), static_cast<std::size_t>(got)});
    if (static_cast<std::size_t>(got) < input.size() && !gone) {
      break;  // that was all; what comes later makes another edge
    }
  }
  return waited && !waiting();
}

void Client::take(std::string_view part) {
  const std::size_t at = reply_.wrong(received_, part);
  if (at != std::string_view::npos) {
    const std::string where = waiting() ? "reply to " + std::string(name_) : "no request is under way";
    const std::size_t byte = received_ + at;
    throw LoadError(where + ": byte " + std::to_string(byte) + " of " + std::to_string(reply_.size()) + ": expected " +
                    hex(reply_.expected(byte, 16)) + ", got " + hex(part.substr(at, 16)));
  }
  if (reply_.number) {
    std::memcpy(reinterpret_cast<char*>(&number_) + received_, part.data(), part.size());
  }
  received_ += part.size();
}

}  // namespace rdzv::load
