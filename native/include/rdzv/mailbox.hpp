// How other threads reach an event loop: they leave something here, and the loop is woken once for all of it.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

#include "rdzv/subscriber.hpp"
#include "rdzv/unique_fd.hpp"
#include "rdzv/waiter.hpp"

namespace rdzv {

class Mailbox {
 public:
  using Task = std::function<void()>;

  // Throws std::system_error.
  Mailbox();

  // Readable when there is something to take.
  int event_fd() const { return event_.get(); }

  void post(Wakes&& wakes);
  void post(Pushes&& pushes);
  // Tasks run on the loop's thread, in the order in which they were posted.
  void post(Task task);

  // With nothing to take: there is something else to look at.
  void wake() { signal(); }

  // Whether there is something to take. Cheap.
  bool full() const { return signalled_.load(std::memory_order_acquire); }
  // By the loop only: everything that is there.
  void take(Wakes& wakes, Pushes& pushes, std::vector<Task>& tasks);
  std::size_t size();

 private:
  void signal();

  UniqueFd event_;
  std::mutex mutex_;
  Wakes wakes_;
  Pushes pushes_;
  std::vector<Task> tasks_;
  std::atomic<bool> signalled_{false};
};

}  // namespace rdzv
