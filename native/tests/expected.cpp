#include "expected.hpp"

#include <algorithm>

#include "requests.hpp"

namespace rdzv::test {

void Expected::bytes(std::string_view more) {
  if (parts_.empty() || parts_.back().keys) {
    parts_.emplace_back();
  }
  parts_.back().bytes += more;
}

void Expected::keys(const std::set<std::string>& keys) { parts_.push_back({{}, keys}); }

void Expected::then(const Expected& more) { parts_.insert(parts_.end(), more.parts_.begin(), more.parts_.end()); }

std::string Expected::mismatch(std::string_view actual) const {
  const auto take = [&](std::size_t size) {
    const std::string_view taken = actual.substr(0, size);
    actual.remove_prefix(taken.size());
    return std::string(taken);
  };
  for (const Part& part : parts_) {
    if (!part.keys) {
      if (take(part.bytes.size()) != part.bytes) {
        return "a reply is not the expected one";
      }
      continue;
    }
    if (take(8) != wire::u64(part.keys->size())) {
      return "a list of keys has another length";
    }
    std::set<std::string> left = *part.keys;
    while (!left.empty()) {
      const auto found = std::find_if(left.begin(), left.end(), [&](const std::string& key) {
        const std::string expected = wire::text(key);
        return actual.substr(0, expected.size()) == expected;
      });
      if (found == left.end()) {
        return "a list has a key that is not there";
      }
      actual.remove_prefix(8 + found->size());
      left.erase(found);
    }
  }
  return actual.empty() ? "" : "there are more replies than expected";
}

}  // namespace rdzv::test
