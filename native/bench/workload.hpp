// What the clients of a run do, as one small program per client. The load drives it; it owns no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exchange.hpp"

namespace rdzv::load {

enum class Next {
  kSend,    // the exchange has been filled in
  kParked,  // nothing to do until `release` names this client
  kDone,
};

class Workload {
 public:
  virtual ~Workload() = default;

  // What `client` does after its last reply (or after a request that brings none).
  virtual Next next(std::size_t client, Exchange& exchange) = 0;
  // The number that a reply held, before `next` is asked; 0 from an echo.
  virtual void number(std::size_t /*client*/, std::int64_t /*value*/) {}

  // Parked clients that may go on; the load takes them out.
  std::vector<std::size_t>& released() { return released_; }

 protected:
  void release(std::size_t client) { released_.push_back(client); }

 private:
  std::vector<std::size_t> released_;
};

struct Plan {
  std::string workload;
  std::string prefix;       // of every key: fresh keys for every run
  std::size_t clients = 0;
  std::size_t rounds = 10;  // how often each client repeats the workload
  std::size_t gets = 8;     // of "mesh": how many peers' values each client gets
  bool echo = false;
};

// "barrier", "mesh", "one_key", "fill", "multi_get"; of a job's start "enrol", "gloo", "store_barrier". Throws
// std::invalid_argument for another name.
std::unique_ptr<Workload> make_workload(const Plan& plan);

}  // namespace rdzv::load
