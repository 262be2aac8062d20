// What the clients of a run do, as one small program per client. The load drives it; it owns no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "exchange.hpp"

namespace rdzv::load {

inline constexpr std::size_t kPeers = 8;  // of "mesh": whose blobs each client gets

enum class Next {
  kSend,    // the exchange has been filled in
  kParked,  // nothing to do until `released` names this client
  kDone,
};

struct Plan {
  std::string workload;
  std::string prefix;       // of every key: fresh keys for every run
  std::size_t rounds = 10;  // how often each client repeats the workload
  std::size_t clients = 0;
  bool echo = false;
};

class Workload {
 public:
  explicit Workload(const Plan& plan) : plan_(plan) {}
  virtual ~Workload() = default;

  // What `client` does after its last reply (or after a request that brings none).
  virtual Next next(std::size_t client, Exchange& exchange) = 0;
  // The number that a reply held, before `next` is asked; 0 from an echo.
  virtual void number(std::size_t /*client*/, std::int64_t /*value*/) {}

  // A parked client that may go on, once.
  std::optional<std::size_t> released() { return std::exchange(released_, std::nullopt); }

 protected:
  const Plan plan_;
  std::optional<std::size_t> released_;
};

// "barrier", "mesh", "one_key", "fill", "multi_get"; of a job's start "gloo" and "store_barrier". Throws
// std::invalid_argument for another name.
std::unique_ptr<Workload> make_workload(const Plan& plan);

}  // namespace rdzv::load
