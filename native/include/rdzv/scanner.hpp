// Finds where a request ends, however its bytes arrive. Looks at each byte once, allocates nothing, knows no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "rdzv/limits.hpp"
#include "rdzv/query.hpp"
#include "rdzv/refusal.hpp"

namespace rdzv {

class Scanner {
 public:
  enum class Result : std::uint8_t { kIncomplete, kComplete, kRefused };

  // `bytes` begins with the request's first byte and holds what has arrived of it so far, or more. Call again with
  // more bytes after kIncomplete: scanning goes on where it stopped. A length is checked as soon as it is there.
  Result advance(std::string_view bytes, const Limits& limits);

  // After kComplete: the bytes of the request, its type byte included.
  std::size_t size() const { return static_cast<std::size_t>(end_); }
  // After kRefused.
  Refusal refusal() const { return refusal_; }
  // The next call begins a new request.
  void reset() { *this = Scanner(); }

 private:
  Result refuse(Refusal why);
  // Reads the length or count that begins the current field. False: refused.
  bool measure(char field, std::uint64_t number, const Limits& limits);
  void next_field(std::string_view layout);

  std::uint64_t end_ = 0;    // of what is known of the request; may lie beyond the bytes that are there
  std::uint64_t groups_ = 0; // how often the layout from group_ on is still to come, this time included
  std::uint8_t field_ = 0;   // index into the layout
  std::uint8_t group_ = 0;   // where a repeated part begins; 0: nothing is repeated
  Refusal refusal_ = Refusal::kNone;
};

}  // namespace rdzv
