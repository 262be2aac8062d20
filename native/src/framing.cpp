#include "rdzv/framing.hpp"

namespace rdzv {

void answer(Output& reply, std::uint32_t id, FrameStatus status, std::string_view payload) {
  reply.number(static_cast<std::uint32_t>(kHeadSize + payload.size()));
  reply.number(id);
  reply.number(static_cast<std::uint8_t>(status));
  reply.raw(payload);
}

}  // namespace rdzv
