// torch's wire format in a proxy: what is answered here, and what goes up to the root.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "rdzv/payload.hpp"
#include "rdzv/relay.hpp"
#include "rdzv/store_protocol.hpp"

namespace rdzv {

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
