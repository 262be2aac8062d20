#include "rdzv/clock.hpp"

#include <time.h>

namespace rdzv {

std::int64_t monotonic_ms() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);  // goes on while the machine is suspended: so does what others may do meanwhile
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

}  // namespace rdzv
