#include "rdzv/conversation.hpp"

#include <algorithm>
#include <cstring>

#include "rdzv/framing.hpp"
#include "rdzv/query.hpp"
#include "rdzv/store_protocol.hpp"
#include "rdzv/session_protocol.hpp"

namespace rdzv {

std::size_t Conversation::feed(std::string_view bytes, Output& reply, Wakes& wakes, Questions questions) {
  std::size_t used = 0;
  client_.questions = questions;
  client_.stopped_early = client_.took_long = client_.held_back = false;
  if (protocol_) {
    protocol_->drain(wakes);
  }
  while (used < bytes.size() && !client_.is_refused() && reads()) {
    if (reply.size() >= kHighWater || std::exchange(client_.took_long, false) || pauses()) {
      client_.stopped_early = true;
      break;
    }
    const std::string_view rest = bytes.substr(used);
    client_.first = used == 0;
    const std::size_t size = protocol_ ? protocol_->run(rest, reply, wakes) : greet(rest, reply);
    if (client_.next) {
      protocol_ = std::move(client_.next);
    }
    if (size == 0) {
      break;
    }
    used += size;
  }
  return used;
}

std::size_t Conversation::pass_gate(std::string_view bytes, Output& reply) {
  const auto step = client_.gate.run(bytes, client_.guarded, *client_.loop.server.tokens(), reply);
  return step.refusal == Refusal::kNone ? step.used : client_.refuse(step.refusal);
}

std::size_t Conversation::greet(std::string_view bytes, Output& reply) {
  if (client_.gate.takes(static_cast<unsigned char>(bytes[0]), client_.guarded)) {
    return pass_gate(bytes, reply);
  }
  // Judged byte by byte, so that whoever speaks another protocol is refused with the first wrong one.
  char expected[9];
  std::size_t size = 0;
  const bool framed = static_cast<unsigned char>(bytes[0]) == kFramingOpcode;
  if (framed) {
    expected[0] = bytes[0];
    std::memcpy(expected + 1, kFramingMagic.data(), 4);
    std::memcpy(expected + 5, &kFramingVersion, 4);
    size = 9;
  } else {
    expected[0] = static_cast<char>(Query::kValidate);
    std::memcpy(expected + 1, &kValidateMagic, 4);
    size = 5;
  }
  const std::size_t there = std::min(size, bytes.size());
  if (std::memcmp(bytes.data(), expected, there) != 0) {
    return client_.refuse(Refusal::kNotAClient);
  }
  if (there < size) {
    return 0;
  }
  if (framed ? client_.may(Purpose::kStore) && client_.guarded : !client_.may(Purpose::kStore)) {
    return client_.refuse(Refusal::kWrongToken);  // it was proved for something else
  }
  if (framed) {
    client_.next = std::make_unique<SessionProtocol>(client_);
    reply.raw(kFramingMagic);
    reply.number(kFramingVersion);
    return size;
  }
  client_.next = torch_protocol(client_);
  client_.loop.counters.requests[0].add(1);
  return size;
}

}  // namespace rdzv
