#include "pattern.hpp"

#include <cstdint>
#include <string>

namespace rdzv::load {

namespace {

constexpr std::size_t kStarts = 24 * 1024;  // at one of them a value begins

}  // namespace

std::string_view pattern(std::size_t seed, std::size_t count) {
  static const std::string bytes = [] {
    std::string text(kStarts + kPatternLimit, '\0');
    std::uint64_t state = 1;
    for (char& byte : text) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      byte = static_cast<char>(state >> 56);
    }
    return text;
  }();
  return std::string_view(bytes).substr((seed * 7) % kStarts, count);
}

}  // namespace rdzv::load
