// Time as the load measures it.
#pragma once

#include <chrono>
#include <cstdint>

namespace rdzv::load {

inline std::uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace rdzv::load
