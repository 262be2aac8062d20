// What a client is expected to be sent, where not every byte is known beforehand.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace rdzv::test {

// Bytes, and in between lists of keys, whose order nobody promises.
class Expected {
 public:
  void bytes(std::string_view more);
  void keys(const std::set<std::string>& keys);
  void then(const Expected& more);
  // Empty if `actual` is what is expected; else what is wrong.
  std::string mismatch(std::string_view actual) const;

 private:
  struct Part {
    std::string bytes;
    std::optional<std::set<std::string>> keys;
  };
  std::vector<Part> parts_;
};

}  // namespace rdzv::test
