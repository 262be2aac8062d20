// The phase in which connected clients go through a workload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "load.hpp"

namespace rdzv::load {

class Running {
 public:
  Running(const Plan& plan, Poller& poller, std::vector<Client>& clients);
  Figures run(double limit_s);

 private:
  void on_ready(std::size_t index, std::uint32_t events);
  void advance(std::size_t index);  // sends until a reply is to be waited for
  void advance_released();
  template <typename Action>
  void guarded(std::size_t index, Action action);
  [[noreturn]] void out_of_time(double limit_s) const;

  const Plan& plan_;
  Poller& poller_;
  std::vector<Client>& clients_;
  const std::unique_ptr<Workload> workload_;
  Exchange exchange_;
  std::size_t done_ = 0;
  Stopwatch watch_;
};

}  // namespace rdzv::load
