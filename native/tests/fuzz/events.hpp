// What the bytes of one fuzzer input mean: several clients that say something in turn, leave, come again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rdzv::fuzz {

// The first byte of an input chooses the limits. Then events, each a head byte: two bits of client, six of length,
//   0 to 59 bytes; 60: the next byte says how many more than 59; 61 to 63: the next two bytes say how many.
// Client 3 stands for what is not said: lengths 0, 1, 2 modulo 4: that client leaves and comes again; 3: wipe.
struct Event {
  enum class Kind : std::uint8_t { kSay, kLeave, kWipe };
  Kind kind = Kind::kSay;
  std::size_t client = 0;
  std::string bytes;
};

struct Program {
  std::uint8_t limits = 0;
  std::vector<Event> events;
};

// Any bytes are a program.
Program decode(std::string_view input);
std::string encode(const Program& program);

}  // namespace rdzv::fuzz
