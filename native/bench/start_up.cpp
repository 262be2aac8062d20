#include "start_up.hpp"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "pattern.hpp"

namespace rdzv::load {

namespace {

constexpr std::size_t kUniqueIdBytes = 128;  // what NCCL's ranks pass on
constexpr std::size_t kBlobBytes = 154, kBlobBytesPerRank = 8;  // gloo's, as seen with torch 2.13

// The sums that come back are 1 to as many as there are clients, each once.
class Enrol final : public Workload {
 public:
  explicit Enrol(const Plan& plan) : plan_(plan), asked_(plan.clients), seen_(plan.clients) {}

  Next next(std::size_t client, Exchange& exchange) override {
    if (asked_[client]) {
      return Next::kDone;
    }
    asked_[client] = true;
    exchange.add(plan_.prefix + "init/", 1);
    return Next::kSend;
  }

  void number(std::size_t /*client*/, std::int64_t value) override {
    if (plan_.echo) {
      return;
    }
    if (value < 1 || value > static_cast<std::int64_t>(plan_.clients)) {
      throw LoadError("reply to add: " + std::to_string(value) + ", which is not within 1.." +
                      std::to_string(plan_.clients));
    }
    const auto index = static_cast<std::size_t>(value - 1);
    if (seen_[index]) {
      throw LoadError("reply to add: " + std::to_string(value) + ", which another client has got already");
    }
    seen_[index] = true;
  }

 private:
  const Plan plan_;
  std::vector<bool> asked_, seen_;
};

// Every client sets its blob; then, for each rank from 0 on, gloo waits, TCPStore's get waits again, and gets.
class Gloo final : public Workload {
 public:
  explicit Gloo(const Plan& plan)
      : plan_(plan), steps_(plan.clients), bytes_(kBlobBytes + kBlobBytesPerRank * plan.clients) {
    if (bytes_ > kPatternLimit) {
      throw std::invalid_argument("gloo: too many clients");
    }
    for (std::size_t client = 0; client < plan.clients; ++client) {
      keys_.push_back(plan.prefix + "/default_pg/0//cpu//0/" + std::to_string(client));
    }
  }

  Next next(std::size_t client, Exchange& exchange) override {
    const std::size_t step = steps_[client]++;
    if (step == 0) {
      exchange.set(keys_[client], pattern(client, bytes_));
      return Next::kSend;
    }
    const std::size_t peer = (step - 1) / 3;
    if (peer == plan_.clients) {
      return Next::kDone;
    }
    if ((step - 1) % 3 == 2) {
      exchange.get(keys_[peer], pattern(peer, bytes_));
    } else {
      exchange.wait(keys_[peer], (step - 1) % 3 == 0);
    }
    return Next::kSend;
  }

 private:
  const Plan plan_;
  std::vector<std::size_t> steps_;
  const std::size_t bytes_;
  std::vector<std::string> keys_;
};

// The first client sets the id of the communicator, the others wait for it and get it.
class Nccl final : public Workload {
 public:
  explicit Nccl(const Plan& plan) : plan_(plan), steps_(plan.clients), key_(plan.prefix + "/default_pg/0//cuda//0") {}

  Next next(std::size_t client, Exchange& exchange) override {
    const std::size_t step = steps_[client]++;
    if (step == (client == 0 ? 1 : 2)) {
      return Next::kDone;
    }
    if (client == 0) {
      exchange.set(key_, pattern(0, kUniqueIdBytes));
    } else if (step == 0) {
      exchange.wait(key_, true);
    } else {
      exchange.get(key_, pattern(0, kUniqueIdBytes));
    }
    return Next::kSend;
  }

 private:
  const Plan plan_;
  std::vector<std::size_t> steps_;
  const std::string key_;
};

// Nobody comes out of a round before all have come in.
class StoreBarrier final : public Workload {
 public:
  explicit StoreBarrier(const Plan& plan) : plan_(plan), rounds_(plan.clients), arrived_(plan.rounds) {}

  Next next(std::size_t client, Exchange& exchange) override {
    const std::size_t round = rounds_[client];
    if (round > 0 && arrived_[round - 1] < plan_.clients) {
      throw LoadError("reply to barrier " + std::to_string(round - 1) + ", at which only " +
                      std::to_string(arrived_[round - 1]) + " of " + std::to_string(plan_.clients) + " have arrived");
    }
    if (round == plan_.rounds) {
      return Next::kDone;
    }
    ++rounds_[client];
    ++arrived_[round];
    exchange.barrier(plan_.prefix + "/barrier/" + std::to_string(round), plan_.clients);
    return Next::kSend;
  }

 private:
  const Plan plan_;
  std::vector<std::size_t> rounds_;
  std::vector<std::size_t> arrived_;  // of each round
};

}  // namespace

std::unique_ptr<Workload> make_start_up(const Plan& plan) {
  if (plan.workload == "enrol") {
    return std::make_unique<Enrol>(plan);
  }
  if (plan.workload == "gloo") {
    return std::make_unique<Gloo>(plan);
  }
  if (plan.workload == "nccl") {
    return std::make_unique<Nccl>(plan);
  }
  if (plan.workload == "store_barrier") {
    return std::make_unique<StoreBarrier>(plan);
  }
  return nullptr;
}

}  // namespace rdzv::load
