// A keyspace as a server, or a proxy, serves it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rdzv/keyspace.hpp"
#include "rdzv/waiter.hpp"

namespace rdzv {

// The trunks of a keyspace: those that are attached, and those whose proxy may still come back. Thread-safe.
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
  // Proxies of that host are given nothing to hold for a while: one that has kept a value from being written cannot do
  // that again by a new connection. All others of that host lose is what they would have saved.
  void distrust(const std::string& host, std::int64_t until_ms) {
    const std::lock_guard lock(mutex_);
    if (distrusted_.size() >= kMostHosts) {
      distrusted_.clear();
    }
    distrusted_[host] = std::max(distrusted_[host], until_ms);
  }
  std::int64_t distrusted_until_ms(const std::string& host) {
    const std::lock_guard lock(mutex_);
    const auto found = distrusted_.find(host);
    return found == distrusted_.end() ? 0 : found->second;
  }

 private:
  static constexpr std::size_t kMostHosts = 4096;

  std::mutex mutex_;
  std::map<std::string, std::int64_t> distrusted_;  // until when
  std::map<std::uint64_t, std::shared_ptr<Trunk>> by_token_;
};

class ServedKeyspace : public Keyspace {
 public:
  using Keyspace::Keyspace;

  Trunks trunks;
};

}  // namespace rdzv
