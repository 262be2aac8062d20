// One epoll, and a loop around it with a time limit. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace rdzv::load {

class Poller {
 public:
  // `check` is called about ten times a second while `poll` runs, and may throw to end it. Throws LoadError.
  explicit Poller(std::function<void()> check);
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  // Both directions, edge-triggered; `id` comes back with every event. Throws LoadError.
  void add(int fd, std::size_t id);
  // Hands events to `on_ready(id, events)` until `finished()`; false: the limit came first.
  bool poll(double limit_s, const std::function<void(std::size_t, std::uint32_t)>& on_ready,
            const std::function<bool()>& finished);

 private:
  const std::function<void()> check_;
  const int epoll_;
};

}  // namespace rdzv::load
