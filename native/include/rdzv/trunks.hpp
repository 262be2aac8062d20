// The trunks of a keyspace: those that are attached, and those whose proxy may still come back. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "rdzv/waiter.hpp"

namespace rdzv {

class Trunks {
 public:
  std::shared_ptr<Trunk> find(std::uint64_t token) {
    const std::lock_guard lock(mutex_);
    const auto found = by_token_.find(token);
    return found == by_token_.end() ? nullptr : found->second;
  }
  void add(std::uint64_t token, std::shared_ptr<Trunk> trunk) {
    const std::lock_guard lock(mutex_);
    by_token_.emplace(token, std::move(trunk));
  }
  std::shared_ptr<Trunk> remove(std::uint64_t token) {
    const std::lock_guard lock(mutex_);
    auto found = by_token_.extract(token);
    return found ? std::move(found.mapped()) : nullptr;
  }
  std::vector<std::shared_ptr<Trunk>> all() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Trunk>> all;
    for (const auto& [token, trunk] : by_token_) {
      all.push_back(trunk);
    }
    return all;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<Trunk>> by_token_;
};

}  // namespace rdzv
