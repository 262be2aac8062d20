// What a proxy asks of its root: what it could not answer by itself. In a proxy: what those behind it ask, relayed.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "rdzv/client_context.hpp"
#include "rdzv/framing.hpp"
#include "rdzv/payload.hpp"
#include "rdzv/relay.hpp"
#include "rdzv/requests.hpp"
#include "rdzv/trunk.hpp"

namespace rdzv {

class TrunkRequests {
 public:
  // `relay_client`: in a proxy.
  TrunkRequests(ClientContext& client, std::shared_ptr<Trunk> trunk, std::shared_ptr<RelayClient> relay_client)
      : client_(client), trunk_(std::move(trunk)), relay_client_(std::move(relay_client)), requests_(client) {}

  // Runs a counted one, under the trunk's lock `working`. False: the client is refused, or it has to wait and is to be
  // run again.
  bool run(Operation operation, std::uint32_t id, std::string_view payload, Wakes& wakes);
  bool woken(const Waiter& waiter, Output& reply) { return requests_.woken(waiter, reply); }
  std::size_t gathered() const { return requests_.gathered(); }
  // When the connection closes.
  void end();

 private:
  bool forward(std::uint32_t id, std::string_view raw, Wakes& wakes);
  void relay_forward(std::uint32_t id, Query query, std::string_view raw);
  void unfollow(std::uint32_t id);
  bool arrive(std::uint32_t id, Payload& payload, Wakes& wakes);
  WaitOwner waits_for(std::uint32_t id, bool sticky) const;

  ClientContext& client_;
  const std::shared_ptr<Trunk> trunk_;
  const std::shared_ptr<RelayClient> relay_client_;
  Requests requests_;
};

}  // namespace rdzv
