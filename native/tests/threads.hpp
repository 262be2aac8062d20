// Several threads at once.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <latch>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "check.hpp"
#include "rdzv/waiter.hpp"

namespace rdzv::test {

// Runs `work(0)` ... `work(count - 1)`, each on a thread, which begin together; waits for all.
inline void run_threads(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::latch ready(static_cast<std::ptrdiff_t>(count));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      ready.arrive_and_wait();
      try {
        work(i);
      } catch (const Ended&) {  // has been reported
      } catch (const std::exception& error) {
        fail(__FILE__, __LINE__, std::string("exception on a thread: ") + error.what());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// Where the wakes of many threads meet, as in the mailboxes of event loops.
class Mail {
 public:
  // Everything in `wakes`; they are empty afterwards.
  void post(Wakes& wakes) {
    if (wakes.empty()) {
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      for (const auto& waiter : wakes) {
        ++times_[waiter.get()];
        held_.push_back(waiter);
      }
    }
    wakes.clear();
    arrived_.notify_all();
  }
  // How often it was woken so far.
  int times(const std::shared_ptr<Waiter>& waiter) {
    const std::lock_guard lock(mutex_);
    const auto found = times_.find(waiter.get());
    return found == times_.end() ? 0 : found->second;
  }
  // Blocks until `waiter` is woken.
  void await(const std::shared_ptr<Waiter>& waiter) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return times_.count(waiter.get()) > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<const Waiter*, int> times_;
  Wakes held_;  // so that no address is used twice
};

}  // namespace rdzv::test
