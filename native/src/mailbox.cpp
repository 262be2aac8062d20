#include "rdzv/mailbox.hpp"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>
#include <iterator>
#include <system_error>

namespace rdzv {

Mailbox::Mailbox() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!event_) {
    throw std::system_error(errno, std::generic_category(), "eventfd");
  }
}

void Mailbox::signal() {
  if (!signalled_.exchange(true, std::memory_order_acq_rel)) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(event_.get(), &one, sizeof one);  // can only fail when it is signalled
  }
}

namespace {

template <class Items>
void move_to_end(Items& to, Items& from) {
  if (to.empty()) {
    to.swap(from);
  } else {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  }
  from.clear();
}

}  // namespace

void Mailbox::post(Wakes&& wakes) {
  const std::lock_guard lock(mutex_);
  move_to_end(wakes_, wakes);
  signal();
}

void Mailbox::post(Pushes&& pushes) {
  const std::lock_guard lock(mutex_);
  move_to_end(pushes_, pushes);
  signal();
}

void Mailbox::post(Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  signal();
}

void Mailbox::take(Wakes& wakes, Pushes& pushes, std::vector<Task>& tasks) {
  const std::lock_guard lock(mutex_);
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = read(event_.get(), &count, sizeof count);
  signalled_.store(false, std::memory_order_release);
  wakes.swap(wakes_);
  pushes.swap(pushes_);
  tasks.swap(tasks_);
}

std::size_t Mailbox::size() {
  const std::lock_guard lock(mutex_);
  return wakes_.size() + pushes_.size() + tasks_.size();
}

}  // namespace rdzv
