// A proxy's connection to its root: counted frames, in their order, across broken connections. What they ask for is
// TrunkRequests; the other end is Upstream. See PROTOCOL.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "rdzv/client_context.hpp"
#include "rdzv/framing.hpp"
#include "rdzv/clock.hpp"
#include "rdzv/payload.hpp"
#include "rdzv/protocol.hpp"
#include "rdzv/relay.hpp"
#include "rdzv/requests.hpp"
#include "rdzv/subscriber.hpp"
#include "rdzv/trunk.hpp"

namespace rdzv {

// What a proxy asks of its root: what it could not answer by itself. In a proxy: what those behind it ask, relayed.
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

class TrunkProtocol final : public Protocol {
 public:
  TrunkProtocol(ClientContext& client, std::shared_ptr<Trunk> trunk, std::shared_ptr<Subscriber> subscriber);
  ~TrunkProtocol() override { TrunkProtocol::end(); }

  // The proxy's frames are read also while one has to wait: what is waited for may come by them.
  std::size_t run(std::string_view bytes, Output& reply, Wakes& wakes) override;
  void drain(Wakes& wakes) override;
  bool woken(const Waiter& waiter, Output& reply) override { return requests_.woken(waiter, reply); }
  bool pushed(Output& reply) override;
  // Null: another connection has taken over.
  std::shared_ptr<Trunk> end() override;

  Lease* lease() override { return trunk_ ? &lease_ : nullptr; }
  bool is_trunk() const override { return true; }
  Trunk* trunk() const override { return trunk_.get(); }
  bool has_queued() const override { return !queued_.empty(); }
  std::size_t gathered() const override { return requests_.gathered(); }

 private:
  // One that is not counted.
  void say(Operation operation, std::string_view payload, Output& reply, Wakes& wakes);

  ClientContext& client_;
  std::shared_ptr<Trunk> trunk_;  // null: the connection has closed
  const std::shared_ptr<Subscriber> subscriber_;
  Lease lease_;
  TrunkRequests requests_;
  std::deque<std::string> queued_;  // frames that have come behind one that has to wait
  std::size_t queued_bytes_ = 0;
};

// ATTACH: from now on the client is a trunk, unless it is refused, or told why not.
void attach_trunk(ClientContext& client, bool in_session, std::uint32_t id, std::string_view payload, Output& reply,
                  Wakes& wakes);

}  // namespace rdzv
