// One run of the fuzzer.
#pragma once

#include <cstdint>
#include <string_view>

namespace rdzv::fuzz {

// Throws std::runtime_error with what is wrong. Returns how many requests were run.
std::uint64_t run(std::string_view input);

}  // namespace rdzv::fuzz
