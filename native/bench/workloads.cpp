#include <algorithm>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "pattern.hpp"
#include "workload.hpp"

namespace rdzv::load {

namespace {

constexpr std::size_t kBlobLimit = 8192;
constexpr std::size_t kUniqueIdBytes = 128;  // what NCCL's ranks pass on
constexpr std::size_t kRequestKeys = 64;
constexpr std::size_t kSmallKeys = 512;
constexpr std::size_t kSmallBytes = 16;
constexpr std::size_t kBlobBytes = 154, kBlobBytesPerRank = 8;  // gloo's, as seen with torch 2.13

// Every client adds 1; the last to arrive sets the key that all others wait for.
class Barrier final : public Workload {
 public:
  explicit Barrier(const Plan& plan) : plan_(plan), states_(plan.clients) {}

  Next next(std::size_t client, Exchange& exchange) override {
    State& state = states_[client];
    if (state.round == plan_.rounds) {
      return Next::kDone;
    }
    const std::string key = plan_.prefix + "/barrier/" + std::to_string(state.round);
    if (!state.arrived) {
      exchange.add(key, 1);
      state.arrived = true;
      return Next::kSend;
    }
    if (state.last) {
      exchange.set(key + "/go", "1");
    } else {
      exchange.wait(key + "/go", true);
    }
    state = State{state.round + 1};
    return Next::kSend;
  }

  void number(std::size_t client, std::int64_t value) override {
    const std::size_t round = states_[client].round;
    if (arrivals_.size() <= round) {
      arrivals_.resize(round + 1);
      seen_.resize(round + 1, std::vector<bool>(plan_.clients));
    }
    ++arrivals_[round];
    if (!plan_.echo) {
      const auto index = static_cast<std::size_t>(value - 1);
      if (value < 1 || index >= plan_.clients || seen_[round][index]) {
        throw LoadError("reply to add: " + std::to_string(value) + ", which is " +
                        (value < 1 || index >= plan_.clients ? "not within 1.." + std::to_string(plan_.clients)
                                                             : std::string("another client's count already")));
      }
      seen_[round][index] = true;
    }
    states_[client].last = plan_.echo ? arrivals_[round] == plan_.clients : value == std::int64_t(plan_.clients);
  }

 private:
  struct State {
    std::size_t round = 0;
    bool arrived = false;
    bool last = false;
  };
  const Plan plan_;
  std::vector<State> states_;
  std::vector<std::size_t> arrivals_;      // of each round
  std::vector<std::vector<bool>> seen_;  // counts that a client has got, of each round
};

// gloo's full mesh: every client sets its blob, then, one after the other, waits twice for a peer's and gets it.
class Mesh final : public Workload {
 public:
  explicit Mesh(const Plan& plan)
      : plan_(plan), steps_(plan.clients), bytes_(std::min(kBlobBytes + kBlobBytesPerRank * plan.clients, kBlobLimit)) {}

  Next next(std::size_t client, Exchange& exchange) override {
    const std::size_t step = steps_[client]++;
    if (step == 0) {
      exchange.set(key(client), pattern(client, bytes_));
      return Next::kSend;
    }
    const std::size_t turn = (step - 1) / 3;
    if (turn >= plan_.gets) {
      return Next::kDone;
    }
    const std::size_t peer = (client + 1 + turn * std::max<std::size_t>(1, plan_.clients / plan_.gets)) % plan_.clients;
    if ((step - 1) % 3 == 2) {
      exchange.get(key(peer), pattern(peer, bytes_));
    } else {
      exchange.wait(key(peer), (step - 1) % 3 == 0);
    }
    return Next::kSend;
  }

 private:
  std::string key(std::size_t client) const { return plan_.prefix + "/default_pg/0//cpu//0/" + std::to_string(client); }

  const Plan plan_;
  std::vector<std::size_t> steps_;
  const std::size_t bytes_;
};

// NCCL's pattern: all wait for one key and get it; the last client sets it once the others wait.
class OneKey final : public Workload {
 public:
  explicit OneKey(const Plan& plan) : plan_(plan), steps_(plan.clients), waiting_(plan.rounds) {}

  Next next(std::size_t client, Exchange& exchange) override {
    const std::size_t step = steps_[client];
    const std::size_t round = step / 2;
    const bool setter = client + 1 == plan_.clients;
    if (round == plan_.rounds) {
      return Next::kDone;
    }
    if (setter && step % 2 == 0 && waiting_[round] + 1 < plan_.clients) {
      setter_waits_for_ = round;
      return Next::kParked;
    }
    ++steps_[client];
    const std::string key = plan_.prefix + "/nccl/" + std::to_string(round);
    if (step % 2 == 1) {
      exchange.get(key, pattern(round, kUniqueIdBytes));
    } else if (setter) {
      exchange.set(key, pattern(round, kUniqueIdBytes));
    } else {
      exchange.wait(key, true);
      if (++waiting_[round] + 1 == plan_.clients && setter_waits_for_ == round) {
        setter_waits_for_ = kNothing;
        release(plan_.clients - 1);
      }
    }
    return Next::kSend;
  }

 private:
  const Plan plan_;
  std::vector<std::size_t> steps_;
  std::vector<std::size_t> waiting_;  // clients that have asked, of each round
  static constexpr std::size_t kNothing = std::numeric_limits<std::size_t>::max();
  std::size_t setter_waits_for_ = kNothing;  // the round
};

// The small values that "multi_get" reads: the first client sets them.
class Fill final : public Workload {
 public:
  explicit Fill(const Plan& plan) : plan_(plan) {}
  static std::string key(const Plan& plan, std::size_t index) {
    return plan.prefix + "/small/" + std::to_string(1000 + index);
  }

  Next next(std::size_t client, Exchange& exchange) override {
    if (client != 0 || step_ == kSmallKeys + 1) {
      return Next::kDone;
    }
    if (step_ < kSmallKeys) {
      exchange.set(key(plan_, step_), pattern(step_, kSmallBytes));
    } else {
      exchange.get(key(plan_, step_ - 1), pattern(step_ - 1, kSmallBytes));
    }
    ++step_;
    return Next::kSend;
  }

 private:
  const Plan plan_;
  std::size_t step_ = 0;
};

// Every client waits for 64 keys and gets them in one request. Neighbours ask for different, overlapping keys.
class MultiGet final : public Workload {
 public:
  explicit MultiGet(const Plan& plan) : plan_(plan), steps_(plan.clients) {
    for (std::size_t index = 0; index < kSmallKeys + kRequestKeys; ++index) {
      append_field(keys_, Fill::key(plan, index % kSmallKeys));
      append_field(values_, pattern(index % kSmallKeys, kSmallBytes));
    }
  }

  Next next(std::size_t client, Exchange& exchange) override {
    const std::size_t step = steps_[client]++;
    if (step / 2 == plan_.rounds) {
      return Next::kDone;
    }
    const std::size_t from = (client * 5 + step / 2) % kSmallKeys;
    if (step % 2 == 0) {
      exchange.wait_many(kRequestKeys, slice(keys_, from));
    } else {
      exchange.multi_get(kRequestKeys, slice(keys_, from), slice(values_, from));
    }
    return Next::kSend;
  }

 private:
  static std::string_view slice(const std::string& fields, std::size_t from) {
    const std::size_t size = fields.size() / (kSmallKeys + kRequestKeys);  // all fields are of one length
    return std::string_view(fields).substr(from * size, kRequestKeys * size);
  }

  const Plan plan_;
  std::vector<std::size_t> steps_;
  std::string keys_, values_;
};

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

template <typename Kind>
std::unique_ptr<Workload> make(const Plan& plan) {
  return std::make_unique<Kind>(plan);
}

}  // namespace

std::unique_ptr<Workload> make_workload(const Plan& plan) {
  using Made = std::unique_ptr<Workload> (*)(const Plan&);
  static constexpr std::pair<std::string_view, Made> kMakers[] = {
      {"barrier", make<Barrier>}, {"mesh", make<Mesh>},   {"one_key", make<OneKey>},
      {"fill", make<Fill>},       {"multi_get", make<MultiGet>}, {"enrol", make<Enrol>},
      {"gloo", make<Gloo>},       {"store_barrier", make<StoreBarrier>},
  };
  for (const auto& [name, made] : kMakers) {
    if (plan.workload == name) {
      return made(plan);
    }
  }
  throw std::invalid_argument("there is no workload '" + plan.workload + "'");
}

}  // namespace rdzv::load
