// How frames are answered. Internal to the conversation.
#pragma once

#include <cstdint>
#include <string_view>

#include "rdzv/conversation.hpp"

namespace rdzv {

void answer(Output& reply, std::uint32_t id, FrameStatus status, std::string_view payload);

}  // namespace rdzv
