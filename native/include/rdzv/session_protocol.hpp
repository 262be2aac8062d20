// Our own framing: a node's session with the runs of the server, its keys with revisions, and its watches. Also how a
// client asks for statistics, enters another keyspace, or becomes a trunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "rdzv/client_context.hpp"
#include "rdzv/framing.hpp"
#include "rdzv/output.hpp"
#include "rdzv/payload.hpp"
#include "rdzv/protocol.hpp"
#include "rdzv/run_space.hpp"

namespace rdzv {

class SessionProtocol final : public Protocol {
 public:
  explicit SessionProtocol(ClientContext& client) : client_(client) {}
  ~SessionProtocol() override { SessionProtocol::end(); }

  std::size_t run(std::string_view bytes, Output& reply, Wakes& wakes) override;
  // Changes that its session watches.
  bool pushed(Output& reply) override;
  // The others hear of it by `LoopContext::pushes`.
  std::shared_ptr<Trunk> end() override;
  Lease* lease() override { return session_ ? &session_->lease : nullptr; }
  Session* session() const override { return session_.get(); }

 private:
  void coordinate(Operation operation, std::uint32_t id, std::string_view payload, Output& reply);
  void open_session(std::uint32_t id, Payload& payload, Output& reply);
  void put(std::uint32_t id, Payload& payload, std::size_t size, Output& reply);
  void remove(std::uint32_t id, Payload& payload, Output& reply);
  void list(std::uint32_t id, Payload& payload, Output& reply);
  void watch(std::uint32_t id, Payload& payload, Output& reply);
  void unwatch(std::uint32_t id, Payload& payload, Output& reply);
  // Refuses a payload that is not what it has to be, and objects if there is no session. False: that is done.
  bool in_session(std::uint32_t id, const Payload& payload, Output& reply);
  // Counts and answers that something would be more than there may be: the session goes on.
  void deny(Output& reply, std::uint32_t id, Refusal why, std::string_view of_what, std::uint64_t most,
            std::string_view limit);
  // After what was pushed before.
  void answer_session(std::uint32_t id, std::string_view payload, Output& reply);

  ClientContext& client_;
  std::unique_ptr<Session> session_;
};

}  // namespace rdzv
