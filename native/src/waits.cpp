#include "rdzv/waits.hpp"

#include <string>
#include <utility>

#include "rdzv/relay.hpp"

namespace rdzv {

bool Waits::may_wait(std::size_t keys) {
  // One request may name this many keys; several that wait at the same time may not name more.
  if (keys_ + keys > client_.loop.limits.keys_per_request) {
    client_.refuse(Refusal::kTooManyWaits);
    return false;
  }
  return true;
}

void Waits::keep(std::shared_ptr<Waiter> waiter) {
  keys_ += waiter->nodes.size();
  waiter->position = waits_.size();
  waits_.push_back(std::move(waiter));
}

bool Waits::woken(const Waiter& waiter, Output& reply) {
  const std::size_t position = waiter.position;
  if (position >= waits_.size() || waits_[position].get() != &waiter) {
    return false;
  }
  keys_ -= waiter.nodes.size();
  waits_.back()->position = position;
  std::swap(waits_[position], waits_.back());
  waits_.pop_back();
  reply.number(kStopWaiting);
  return true;
}

void Waits::cancel() {
  std::vector<std::string> unwanted;
  for (const auto& waiter : waits_) {
    if (client_.loop.relay != nullptr) {
      for (const WaitNode& node : waiter->nodes) {
        if (node.entry != nullptr) {
          unwanted.emplace_back(node.entry->key());
        }
      }
    }
    client_.keyspace->cancel(*waiter);
    waiter->owner = nullptr;
  }
  waits_.clear();
  for (const std::string& key : unwanted) {
    client_.loop.relay->unwant(key);
  }
  keys_ = 0;
}

}  // namespace rdzv
