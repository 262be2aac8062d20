// Proxies of one store, or of proxies in front of it, all driven by the calling thread. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "figures.hpp"
#include "place.hpp"
#include "poller.hpp"
#include "proxy.hpp"

namespace rdzv::load {

class Proxies {
 public:
  // `count` proxies of `workers` each; neighbours have the same of the `roots`. See Poller for `check`. Throws LoadError.
  Proxies(std::vector<Place> roots, std::size_t count, std::size_t workers, std::function<void()> check);
  Proxies(const Proxies&) = delete;
  Proxies& operator=(const Proxies&) = delete;

  // Each of these takes all proxies through one phase. Throws LoadError and ConnectionLost (naming phase and proxy),
  // TimeLimit.

  // They attach, `window` at a time, from `sources` in turn (empty: the system's choice). Once only.
  Figures attach(std::size_t window, const std::vector<std::string>& sources, double limit_s);
  // Each adds 1 for each worker to `key`, which nobody has touched. The sums that come back are right, and each is
  // another proxy's.
  Figures add(std::string_view key, double limit_s);
  // Each arrives with all its workers, `rounds` times; nobody comes out of one before all have come in. The keys, which
  // begin with `key`, have counted all workers in the end.
  Figures barrier(std::string_view key, std::size_t rounds, double limit_s);
  // The trunks end as those of proxies that were killed.
  void close();

 private:
  std::int64_t world() const { return static_cast<std::int64_t>(proxies_.size() * workers_); }
  // The counter of a barrier that is over.
  void expect_count(const std::string& key, double limit_s);
  // Until all are done; `on_answer(index)` when the answer of a proxy has come.
  void drive(std::string_view phase, double limit_s, const std::function<void(std::size_t)>& on_answer);
  // Does something with a proxy, and names both where that fails.
  template <typename Action>
  void guarded(std::string_view phase, std::size_t index, Action action);
  void tick();

  const std::vector<Place> roots_;
  const std::size_t workers_;
  const std::function<void()> check_;
  Poller poller_;
  std::vector<Proxy> proxies_;
  std::size_t done_ = 0;
};

}  // namespace rdzv::load
