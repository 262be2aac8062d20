// A second reader of requests: slow, plain, from the documentation. What the scanner finds is compared with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rdzv/limits.hpp"

namespace rdzv::test {

struct Parsed {
  std::size_t size = 0;  // of the request; 0: more has to come, or it is refused
  Refusal refusal = Refusal::kNone;
  int type = 0;
  std::vector<std::string> texts;  // keys and values, in their order
  std::int64_t number = 0;         // nonce, magic, delta or world size
};

// The request at the beginning of `bytes`.
Parsed parse(std::string_view bytes, const Limits& limits);

}  // namespace rdzv::test
