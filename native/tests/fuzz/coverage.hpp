// Which edges of the program a run has gone through, counted by code that g++ puts in with
// -fsanitize-coverage=trace-pc.
#pragma once

#include <cstddef>

namespace rdzv::fuzz::coverage {

// Forgets the run before.
void begin();
// How many places this run has reached that none before it has (or not as often).
std::size_t gain();
// All places reached so far.
std::size_t total();

}  // namespace rdzv::fuzz::coverage
