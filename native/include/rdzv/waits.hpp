// A client's requests that wait for keys, or for others at a barrier.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "rdzv/client_context.hpp"
#include "rdzv/output.hpp"
#include "rdzv/waiter.hpp"

namespace rdzv {

class Waits {
 public:
  explicit Waits(ClientContext& client) : client_(client) {}
  Waits(const Waits&) = delete;
  Waits& operator=(const Waits&) = delete;
  ~Waits() { cancel(); }

  // False: it waits for too many keys already, and is refused.
  bool may_wait(std::size_t keys);
  void keep(std::shared_ptr<Waiter> waiter);
  // Sends the answer. False: it is none of these any more.
  bool woken(const Waiter& waiter, Output& reply);
  // All of them.
  void cancel();

 private:
  ClientContext& client_;
  std::vector<std::shared_ptr<Waiter>> waits_;
  std::size_t keys_ = 0;  // of all of them
};

}  // namespace rdzv
