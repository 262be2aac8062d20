#include "client.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "rdzv/payload.hpp"

namespace rdzv::load {

namespace {

constexpr std::string_view kUnix = "unix:@";

std::array<char, 256 * 1024> input;  // of the one thread that drives the load

[[noreturn]] void lost(std::string_view what, int error) {
  throw ConnectionLost(std::string(what) + ": " + std::strerror(error));
}

template <typename Address>
Place place_of(const Address& address, std::size_t size) {
  Place place;
  std::memcpy(&place.address, &address, sizeof address);
  place.size = static_cast<socklen_t>(size);
  return place;
}

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    char digits[4];
    std::snprintf(digits, sizeof digits, " %02x", static_cast<unsigned char>(byte));
    text += text.empty() ? digits + 1 : digits;
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace

std::string Reply::expected(std::size_t from, std::size_t count) const {
  std::string all(head.data(), head_size);
  all += body;
  return from < all.size() ? all.substr(from, count) : std::string();
}

std::size_t Reply::wrong(std::size_t offset, std::string_view part) const {
  if (offset + part.size() > size()) {
    return size() - offset;
  }
  if (number) {
    return std::string_view::npos;
  }
  std::size_t at = 0;
  for (; at < part.size() && offset + at < head_size; ++at) {
    if (part[at] != head[offset + at]) {
      return at;
    }
  }
  const std::string_view rest = part.substr(at);
  if (rest.empty() || body.compare(offset + at - head_size, rest.size(), rest) == 0) {
    return std::string_view::npos;
  }
  const auto from = body.begin() + static_cast<std::ptrdiff_t>(offset + at - head_size);
  return at + static_cast<std::size_t>(std::mismatch(rest.begin(), rest.end(), from).first - rest.begin());
}

void Exchange::start(Query query) {
  request_.assign(1, static_cast<char>(query));
  reply_ = Reply{};
  name_ = info(query).name;
  requests_ = 1;
  timed_ = true;
}

template <typename Number>
void Exchange::finish(Number head, std::string_view body) {
  std::memcpy(reply_.head.data(), &head, sizeof head);
  reply_.head_size = sizeof head;
  reply_.body = body;
  finish();
}

void Exchange::finish() {
  if (!echo_) {
    return;
  }
  const auto length = static_cast<std::uint32_t>(request_.size());
  const auto answer = static_cast<std::uint32_t>(reply_.size());
  std::memcpy(request_.data(), &length, sizeof length);
  std::memcpy(request_.data() + sizeof length, &answer, sizeof answer);
  const bool number = reply_.number;
  reply_ = Reply{};
  reply_.body = zeros(answer);
  reply_.number = number;
}

void Exchange::connect(std::uint32_t nonce) {
  start(Query::kValidate);
  add_number(request_, kValidateMagic);
  request_.push_back(static_cast<char>(Query::kPing));
  add_number(request_, nonce);
  name_ = info(Query::kPing).name;
  requests_ = 2;
  finish(nonce);
}

void Exchange::set(std::string_view key, std::string_view value) {
  start(Query::kSet);
  append_field(request_, key);
  append_field(request_, value);
  finish();
}

void Exchange::get(std::string_view key, std::string_view expected) {
  start(Query::kGet);
  append_field(request_, key);
  finish(std::uint64_t{expected.size()}, expected);
}

void Exchange::add(std::string_view key, std::int64_t delta) {
  start(Query::kAdd);
  append_field(request_, key);
  add_number(request_, delta);
  reply_.number = true;
  finish(delta);
}

void Exchange::wait(std::string_view key, bool others) {
  std::string field;
  append_field(field, key);
  wait_many(1, field, others);
}

void Exchange::barrier(std::string_view key, std::size_t world) {
  start(Query::kBarrier);
  append_field(request_, key);
  add_number(request_, static_cast<std::int64_t>(world));
  timed_ = false;
  finish(kStopWaiting);
}

void Exchange::wait_many(std::size_t count, std::string_view keys, bool others) {
  start(Query::kWait);
  add_number(request_, std::uint64_t{count});
  request_ += keys;
  timed_ = !others;
  finish(kStopWaiting);
}

void Exchange::multi_get(std::size_t count, std::string_view keys, std::string_view expected) {
  start(Query::kMultiGet);
  add_number(request_, std::uint64_t{count});
  request_ += keys;
  reply_.body = expected;
  finish();
}

void append_field(std::string& to, std::string_view bytes) {
  add_number(to, std::uint64_t{bytes.size()});
  to += bytes;
}

std::string_view zeros(std::size_t count) {
  static const std::array<char, kEchoLimit> bytes{};
  return {bytes.data(), std::min(count, kEchoLimit)};
}

void fail(const char* what) { throw LoadError(std::string(what) + ": " + std::strerror(errno)); }

Place parse_place(const std::string& text) {
  if (text.starts_with(kUnix)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::size_t length = text.size() - kUnix.size();
    if (length + 1 > sizeof address.sun_path) {
      throw LoadError("too long for the name of a Unix socket: '" + text + "'");
    }
    std::memcpy(address.sun_path + 1, text.data() + kUnix.size(), length);  // after the zero of an abstract one
    return place_of(address, offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  const std::size_t colon = text.find(':');
  const unsigned long port = colon == std::string::npos ? 0 : std::strtoul(text.c_str() + colon + 1, nullptr, 10);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (port == 0 || port > 65535 || ::inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.sin_addr) != 1) {
    throw LoadError("not an IPv4 address and a port: '" + text + "'");
  }
  return place_of(address, sizeof address);
}

void Client::open(const Place& place) {
  fd_ = ::socket(place.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) {
    fail("socket");
  }
  const int on = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // which a Unix socket does not know, nor need
}

void Client::connect(const Place& place) {
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&place.address), place.size) != 0 && errno != EINPROGRESS) {
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
    unsent_.clear();
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
  unsent_ += exchange.request();
  flush();
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
  const bool waited = waiting(), gone = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
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
