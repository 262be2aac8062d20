// The clock that all times here are of.
#pragma once

#include <time.h>

#include <cstdint>

namespace rdzv {

inline std::int64_t monotonic_ms() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);  // goes on while the machine is suspended: so does what others may do meanwhile
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

// For how long one who is silent counts as there. Kept for sessions and for trunks, by their event loop.
struct Lease {
  std::int64_t ttl_ms = 0;
  std::int64_t heard_ms = 0;    // when its client last sent something: LoopContext::running_ms()
  std::int64_t listed_ms = -1;  // when the event loop looks at it again; kept there. -1: it does not know of it
};

}  // namespace rdzv
