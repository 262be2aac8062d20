#include "client.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace rdzv::test {

namespace {

constexpr int kDeadlineMs = 30'000;

[[noreturn]] void failed(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

struct Address {
  Address(const char* text, std::uint16_t port) {
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
      v4.sin_family = AF_INET;
      v4.sin_port = htons(port);
      size = sizeof v4;
    } else {
      v6 = {};
      inet_pton(AF_INET6, text, &v6.sin6_addr);
      v6.sin6_family = AF_INET6;
      v6.sin6_port = htons(port);
      size = sizeof v6;
    }
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&v4); }
  union {
    sockaddr_in v4{};
    sockaddr_in6 v6;
  };
  socklen_t size;
};

void set_option(int fd, int level, int name, int value) {
  if (setsockopt(fd, level, name, &value, sizeof value) != 0) {
    failed("setsockopt");
  }
}

}  // namespace

int bound_socket(const char* text, std::uint16_t port) {
  const Address address(text, port);
  UniqueFd fd(socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.get()->sa_family == AF_INET6) {
    set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  }
  if (bind(fd.get(), address.get(), address.size) != 0) {
    failed("bind");
  }
  return fd.release();
}

Client::Client(std::uint16_t port, const char* text, int receive_buffer) {
  const Address address(text, port);
  fd_ = UniqueFd(socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd_) {
    failed("socket");
  }
  if (receive_buffer > 0) {
    set_option(fd(), SOL_SOCKET, SO_RCVBUF, receive_buffer);
  }
  if (connect(fd(), address.get(), address.size) != 0) {
    failed("connect");
  }
  set_option(fd(), IPPROTO_TCP, TCP_NODELAY, 1);  // as torch's client has it
  fcntl(fd(), F_SETFL, O_NONBLOCK);
}

void Client::wait_for(short events) {
  pollfd ready{fd(), events, 0};
  const int count = poll(&ready, 1, kDeadlineMs);
  if (count == 0) {
    throw std::runtime_error(events == POLLIN ? "the server does not answer" : "the server does not read");
  }
}

bool Client::push(std::string_view& bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      return errno == EAGAIN;
    }
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

void Client::say(std::string_view bytes) {
  while (true) {
    if (!push(bytes)) {
      throw std::runtime_error("the server has closed the connection (send)");
    }
    if (bytes.empty()) {
      return;
    }
    wait_for(POLLOUT);
  }
}

std::string Client::hear(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t at = 0; at < size;) {
    const ssize_t got = recv(fd(), bytes.data() + at, size - at, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
      throw std::runtime_error("the server has closed the connection");
    }
    if (got < 0) {
      wait_for(POLLIN);
    } else {
      at += static_cast<std::size_t>(got);
    }
  }
  return bytes;
}

std::size_t Client::read_to_end() {
  std::string bytes(1 << 16, '\0');
  std::size_t heard = 0;
  while (true) {
    const ssize_t got = recv(fd(), bytes.data(), bytes.size(), 0);
    if (got > 0) {
      heard += static_cast<std::size_t>(got);
    } else if (got < 0 && errno == EAGAIN) {
      wait_for(POLLIN);
    } else {
      return heard;
    }
  }
}

bool Client::sees_close() {
  try {
    read_to_end();
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

void Client::reset() {
  const linger at_once{1, 0};
  setsockopt(fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  fd_.reset();
}

bool can_connect(std::uint16_t port) {
  try {
    Client client(port);
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kDeadlineMs);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

Host::Host(std::uint32_t threads, const Limits& limits) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    failed("pipe");
  }
  log_ = UniqueFd(ends[0]);
  server_ = std::make_unique<Server>(Settings{threads, limits, "test", ends[1]});
  first_ = open("first");
}

Host::~Host() = default;

Client Host::client(std::uint16_t port) {
  Client client(port);
  client.greet();
  return client;
}

std::int64_t Host::figure(const std::string& object, const std::string& name) {
  const std::string json = server_->statistics();
  const std::size_t begin = json.find("\"" + object + "\":{");
  const std::size_t end = json.find('}', begin);
  const std::size_t at = json.find("\"" + name + "\":", begin);
  if (begin == std::string::npos || at == std::string::npos || at > end) {
    return 0;
  }
  return std::strtoll(json.c_str() + at + name.size() + 3, nullptr, 10);
}

std::string Host::log() {
  std::string text(1 << 16, '\0');
  const ssize_t got = read(log_.get(), text.data(), text.size());
  return text.substr(0, got > 0 ? static_cast<std::size_t>(got) : 0);
}

}  // namespace rdzv::test
