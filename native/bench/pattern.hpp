// The values that the clients of a load set, and expect.
#pragma once

#include <cstddef>
#include <string_view>

namespace rdzv::load {

inline constexpr std::size_t kPatternLimit = 256 * 1024;

// `count` bytes, at most kPatternLimit, that differ from one `seed` to the next. The view stays valid.
std::string_view pattern(std::size_t seed, std::size_t count);

}  // namespace rdzv::load
