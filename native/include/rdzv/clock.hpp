// The clock that all times here are of.
#pragma once

#include <cstdint>

namespace rdzv {

std::int64_t monotonic_ms();

}  // namespace rdzv
