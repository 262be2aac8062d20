// Compiled without the instrumentation that it serves.
#include "coverage.hpp"

#include <array>
#include <bit>
#include <cstdint>

namespace rdzv::fuzz::coverage {

namespace {

constexpr std::size_t kPlaces = 1 << 16;

std::array<std::uint8_t, kPlaces> counts;  // how often this run was here
std::array<std::uint8_t, kPlaces> seen;    // a bit for each power of two that a run has reached
std::size_t reached = 0;

}  // namespace

void begin() { counts.fill(0); }

std::size_t gain() {
  std::size_t gained = 0;
  for (std::size_t i = 0; i < kPlaces; ++i) {
    if (counts[i] > 0) {
      const auto bit = static_cast<std::uint8_t>(1u << (std::bit_width(counts[i]) - 1));
      reached += seen[i] == 0 ? 1 : 0;
      gained += (seen[i] & bit) == 0 ? 1 : 0;
      seen[i] = static_cast<std::uint8_t>(seen[i] | bit);
    }
  }
  return gained;
}

std::size_t total() { return reached; }

}  // namespace rdzv::fuzz::coverage

// Called by the instrumented code at the beginning of each basic block.
extern "C" void __sanitizer_cov_trace_pc() {
  using rdzv::fuzz::coverage::counts;
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  auto& count = counts[(here ^ here >> 16) % counts.size()];
  count = static_cast<std::uint8_t>(count + (count < 255 ? 1 : 0));
}
