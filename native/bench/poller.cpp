#include "poller.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "clock.hpp"
#include "errors.hpp"

namespace rdzv::load {

namespace {

constexpr std::uint64_t kCheckEveryNs = 100'000'000;

[[noreturn]] void fail(const char* what) { throw LoadError(std::string(what) + ": " + std::strerror(errno)); }

}  // namespace

Poller::Poller(std::function<void()> check) : check_(std::move(check)), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_ < 0) {
    fail("epoll_create1");
  }
}

Poller::~Poller() { ::close(epoll_); }

void Poller::add(int fd, std::size_t id) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    fail("epoll_ctl");
  }
}

bool Poller::poll(double limit_s, const std::function<void(std::size_t, std::uint32_t)>& on_ready,
                  const std::function<bool()>& finished) {
  const std::uint64_t end = now_ns() + static_cast<std::uint64_t>(limit_s * 1e9);
  std::uint64_t next_check = now_ns() + kCheckEveryNs;
  std::array<epoll_event, 1024> events;
  while (!finished()) {
    const std::uint64_t now = now_ns();
    if (now >= end) {
      return false;
    }
    if (now >= next_check) {
      check_();
      next_check = now + kCheckEveryNs;
    }
    const std::uint64_t wait_ms = std::min(end - now, kCheckEveryNs) / 1'000'000 + 1;
    const int ready = ::epoll_wait(epoll_, events.data(), events.size(), static_cast<int>(wait_ms));
    if (ready < 0 && errno != EINTR) {
      fail("epoll_wait");
    }
    for (int i = 0; i < ready; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      on_ready(static_cast<std::size_t>(event.data.u64), event.events);
    }
  }
  return true;
}

}  // namespace rdzv::load
