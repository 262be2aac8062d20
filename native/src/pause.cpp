#include "rdzv/pause.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "rdzv/clock.hpp"

namespace rdzv {

int Pause::after(std::int64_t ms) {
  const std::lock_guard lock(mutex_);
  if (event_) {
    throw std::invalid_argument("this keyspace pauses already");
  }
  UniqueFd event(eventfd(0, EFD_CLOEXEC));
  const int theirs = event ? fcntl(event.get(), F_DUPFD_CLOEXEC, 0) : -1;
  if (theirs < 0) {
    throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  event_ = std::move(event);
  turned_ms_.store(monotonic_ms(), std::memory_order_release);
  after_ms_.store(ms, std::memory_order_release);
  return theirs;
}

bool Pause::check_armed() {
  const std::int64_t now_ms = monotonic_ms();
  std::int64_t before = turned_ms_.load(std::memory_order_acquire);
  if (now_ms - before >= after_ms_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(mutex_);
    stood_still(now_ms);
  } else if (now_ms > before) {  // fails if another loop was faster, which may have stood still in between
    turned_ms_.compare_exchange_strong(before, now_ms, std::memory_order_acq_rel);
  }
  return paused_.load(std::memory_order_acquire);
}

void Pause::stood_still(std::int64_t now_ms) {
  if (now_ms - turned_ms_.load(std::memory_order_acquire) < after_ms_.load(std::memory_order_relaxed)) {
    return;  // another loop has said so
  }
  ++number_;
  paused_.store(true, std::memory_order_release);
  turned_ms_.store(now_ms, std::memory_order_release);
  signal();
}

std::uint64_t Pause::number() {
  const std::lock_guard lock(mutex_);
  return number_;
}

bool Pause::resume(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (!event_) {
    return false;
  }
  stood_still(monotonic_ms());  // before it is too late to notice
  if (number != number_) {
    return false;
  }
  return paused_.exchange(false, std::memory_order_acq_rel);
}

void Pause::end() {
  const std::lock_guard lock(mutex_);
  signal();  // and it pauses on, if it does: connections are closed one by one
}

void Pause::signal() {
  if (event_) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(event_.get(), &one, sizeof one);
  }
}

}  // namespace rdzv
