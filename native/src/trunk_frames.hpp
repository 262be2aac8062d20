// How the frames of a trunk are laid out. Internal to both of its ends.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "rdzv/payload.hpp"

namespace rdzv {

// Flags of attach, and of follow.
inline constexpr std::uint8_t kLeaf = 1, kAgain = 2;
inline constexpr std::uint8_t kReads = 1, kAhead = 2;

// `kind`: the operation, or the status of what is said to the proxy.
inline std::string make_frame(std::uint32_t id, std::uint8_t kind, std::string_view payload) {
  std::string frame;
  frame.reserve(4 + 4 + 1 + payload.size());
  add_number(frame, static_cast<std::uint32_t>(4 + 1 + payload.size()));
  add_number(frame, id);
  add_number(frame, kind);
  frame.append(payload);
  return frame;
}

}  // namespace rdzv
