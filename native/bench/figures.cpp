#include "figures.hpp"

#include <algorithm>

namespace rdzv::load {

Figures Stopwatch::stop() {
  Figures figures;
  figures.seconds = static_cast<double>(now_ns() - began_ns_) / 1e9;
  figures.requests = requests_;
  figures.timed = latencies_ns_.size();
  figures.p50_us = percentile_us(50);
  figures.p99_us = percentile_us(99);
  return figures;
}

double Stopwatch::percentile_us(std::size_t percent) {
  if (latencies_ns_.empty()) {
    return 0;
  }
  const auto at = latencies_ns_.begin() + static_cast<std::ptrdiff_t>((latencies_ns_.size() - 1) * percent / 100);
  std::nth_element(latencies_ns_.begin(), at, latencies_ns_.end());
  return static_cast<double>(*at) / 1e3;
}

}  // namespace rdzv::load
