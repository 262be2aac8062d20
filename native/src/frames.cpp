// Our own framing: length, request id, operation.
#include "frames.hpp"

namespace rdzv {

void answer(Output& reply, std::uint32_t id, FrameStatus status, std::string_view payload) {
  reply.number(static_cast<std::uint32_t>(4 + 1 + payload.size()));
  reply.number(id);
  reply.number(static_cast<std::uint8_t>(status));
  reply.raw(payload);
}

std::size_t Conversation::frame(std::string_view bytes, Output& reply, Wakes& wakes) {
  constexpr std::size_t kLength = 4, kHead = 5;  // the length does not count itself
  if (bytes.size() < kLength) {
    return 0;
  }
  Fields fields(bytes);
  const auto size = fields.number<std::uint32_t>();
  if (size < kHead || size > kMaxFrame) {
    return refuse(Refusal::kBadFrame);
  }
  if (size > context_.limits.request_bytes) {
    return refuse(Refusal::kRequestTooLong);
  }
  if (bytes.size() < kLength + size) {
    return 0;
  }
  context_.counters.frames.add(1);
  const auto id = fields.number<std::uint32_t>();
  const auto operation = static_cast<Operation>(fields.number<std::uint8_t>());
  const std::string_view payload = bytes.substr(kLength + kHead, size - kHead);
  switch (operation) {
    case Operation::kStatistics:
      answer(reply, id, FrameStatus::kOk, context_.server.statistics());
      took_long_ = true;
      break;
    case Operation::kEnter:
      if (session_) {
        answer(reply, id, FrameStatus::kError, "a connection with a session cannot enter a keyspace");
      } else if (auto keyspace = context_.server.keyspace(payload)) {
        enter(std::move(keyspace));
        phase_ = Phase::kStore;
        answer(reply, id, FrameStatus::kOk, {});
      } else {
        answer(reply, id, FrameStatus::kError, "there is no keyspace '" + std::string(payload) + "'");
      }
      break;
    case Operation::kOpen:
    case Operation::kPut:
    case Operation::kList:
    case Operation::kWatch:
    case Operation::kUnwatch:
    case Operation::kDelete:
    case Operation::kKeepAlive:
      context_.counters.coordination[coordination_index(operation)].add(1);
      coordinate(operation, id, payload, reply);
      break;
    case Operation::kAttach:
      context_.counters.trunk[trunk_index(operation)].add(1);
      attach(id, payload, reply, wakes);
      break;
    default:
      answer(reply, id, FrameStatus::kError, "unknown operation " + std::to_string(static_cast<int>(operation)));
  }
  return refusal_ == Refusal::kNone ? kLength + size : 0;
}

}  // namespace rdzv
