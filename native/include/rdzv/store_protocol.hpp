// torch's wire format: a worker, or an agent, at the store itself, or at a proxy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "rdzv/client_context.hpp"
#include "rdzv/output.hpp"
#include "rdzv/payload.hpp"
#include "rdzv/protocol.hpp"
#include "rdzv/query.hpp"
#include "rdzv/relay.hpp"
#include "rdzv/requests.hpp"

namespace rdzv {

class StoreProtocol : public Protocol {
 public:
  explicit StoreProtocol(ClientContext& client) : client_(client), requests_(client) {}

  std::size_t run(std::string_view bytes, Output& reply, Wakes& wakes) override;
  bool woken(const Waiter& waiter, Output& reply) override { return requests_.woken(waiter, reply); }
  std::shared_ptr<Trunk> end() override {
    requests_.forget_holders();
    requests_.waits.cancel();  // before its socket closes: who sees that may count on the next one in line being served
    return nullptr;
  }
  std::size_t gathered() const override { return requests_.gathered(); }

 protected:
  // Runs a complete request; returns its size, or 0 as run() does.
  virtual std::size_t serve(Query query, std::string_view raw, Output& reply, Wakes& wakes);

  ClientContext& client_;
  Requests requests_;

 private:
  // Those of `wakes` from `first` on that are this client's: their answers come before those to later requests.
  void answer_own(std::size_t first, Output& reply, Wakes& wakes);

  Scanner scanner_;
};

// In a proxy: what is answered here, and what goes up to the root.
class RelayedProtocol final : public StoreProtocol {
 public:
  explicit RelayedProtocol(ClientContext& client)
      : StoreProtocol(client), relay_client_(std::make_shared<RelayClient>(RelayClient{client.owner})) {}
  ~RelayedProtocol() override { RelayedProtocol::end(); }

  std::shared_ptr<Trunk> end() override {
    relay_client_->owner = nullptr;
    return StoreProtocol::end();
  }

 private:
  std::size_t serve(Query query, std::string_view raw, Output& reply, Wakes& wakes) override;
  bool answers_here(Query query, Fields fields) const;
  void wait(Keyspace::Keys keys, Output& reply);
  void barrier(std::string_view key, std::int64_t world_size);

  const std::shared_ptr<RelayClient> relay_client_;
};

// What a client speaks that says it is torch's: relayed in a proxy, else at the store itself.
std::unique_ptr<Protocol> torch_protocol(ClientContext& client);

}  // namespace rdzv
