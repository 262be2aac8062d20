// torch's wire format: a worker, or an agent, at the store itself.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "rdzv/client_context.hpp"
#include "rdzv/output.hpp"
#include "rdzv/protocol.hpp"
#include "rdzv/query.hpp"
#include "rdzv/requests.hpp"
#include "rdzv/scanner.hpp"

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

}  // namespace rdzv
