// How frames are answered. Internal to the protocols that have them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "rdzv/framing.hpp"
#include "rdzv/output.hpp"

namespace rdzv {

// Of a frame: its length, which does not count itself, and the id and the operation behind that.
inline constexpr std::size_t kLengthSize = 4, kHeadSize = 5;

void answer(Output& reply, std::uint32_t id, FrameStatus status, std::string_view payload);

}  // namespace rdzv
