// Sees when keys are read one after the other, as gloo's ranks read each other's: then those that come next can be asked
// for before anybody waits for them.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace rdzv {

class ReadAhead {
 public:
  // Keys after the one that is read, that are to be asked for: from `first` to before `end`.
  struct Range {
    std::string_view stem;
    std::uint64_t first = 0, end = 0;
  };

  // `key` is read.
  Range next(std::string_view key) {
    const auto digits = key.find_last_not_of("0123456789") + 1;  // npos + 1 is 0
    const std::string_view stem = key.substr(0, digits), number = key.substr(digits);
    std::uint64_t n = 0;
    if (number.empty() || number.size() > kMostDigits || (number.size() > 1 && number[0] == '0') || stem.empty()) {
      return {};
    }
    std::from_chars(number.data(), number.data() + number.size(), n);
    if (runs_.size() >= kMostRuns && !runs_.contains(std::string(stem))) {
      runs_.clear();
    }
    Run& run = runs_[std::string(stem)];
    if (n <= run.last && run.length > 0) {  // somebody is behind the first one
      return {};
    }
    // a rank does not read its own
    run.length = run.length > 0 && n <= run.last + 2 ? run.length + (n - run.last) : 1;
    run.last = n;
    if (run.length < kLeast) {
      run.asked = n + 1;
      return {};
    }
    const std::uint64_t end = n + 1 + std::min(run.length / 8 + 1, kMost);
    const std::uint64_t first = std::max(run.asked, n + 1);
    // not one by one: each request costs the root something, but a late one costs the readers a round trip
    if (first >= end || (end - first) * 2 < end - n - 1) {
      return {};
    }
    run.asked = end;
    return {stem, first, end};
  }

 private:
  static constexpr std::uint64_t kLeast = 3, kMost = 32;
  static constexpr std::size_t kMostDigits = 9, kMostRuns = 1024;

  struct Run {
    std::uint64_t last = 0, length = 0, asked = 0;
  };
  std::unordered_map<std::string, Run> runs_;
};

}  // namespace rdzv
