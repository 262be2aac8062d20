// What one phase of the load took.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "clock.hpp"

namespace rdzv::load {

struct Figures {
  double seconds = 0;
  std::uint64_t requests = 0;  // also those that bring no reply
  std::uint64_t timed = 0;     // round trips that the percentiles are of
  double p50_us = 0;
  double p99_us = 0;
  std::map<std::string, std::size_t> failures;  // connections that failed, by reason
};

// Collects while a phase runs. Its time begins when it is made.
class Stopwatch {
 public:
  explicit Stopwatch(std::size_t round_trips) { latencies_ns_.reserve(round_trips); }

  void count(std::uint64_t requests) { requests_ += requests; }
  void sample(std::uint64_t since_ns) { latencies_ns_.push_back(now_ns() - since_ns); }
  Figures stop();

 private:
  double percentile_us(std::size_t percent);

  std::vector<std::uint64_t> latencies_ns_;
  std::uint64_t requests_ = 0;
  const std::uint64_t began_ns_ = now_ns();
};

}  // namespace rdzv::load
