#include "load.hpp"

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace rdzv::load {

namespace {

constexpr std::size_t kUniqueIdBytes = 128;  // what NCCL's ranks pass on
constexpr std::size_t kRequestKeys = 64;
constexpr std::size_t kSmallKeys = 512;
constexpr std::size_t kSmallBytes = 16;
constexpr std::size_t kBlobBytes = 154, kBlobBytesPerRank = 8;  // gloo's, as seen with torch 2.13
constexpr std::size_t kMeshBlobLimit = 8192, kPatternLimit = 256 * 1024;
constexpr std::size_t kStarts = 24 * 1024;  // at one of them a value begins

// The values that clients set, and expect: `count` bytes, at most kPatternLimit, that differ from one `seed` to the
// next. The view stays valid.
std::string_view pattern(std::size_t seed, std::size_t count) {
  static const std::string bytes = [] {
    std::string text(kStarts + kPatternLimit, '\0');
    std::uint64_t state = 1;
    for (char& byte : text) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      byte = static_cast<char>(state >> 56);
    }
    return text;
  }();
  return std::string_view(bytes).substr((seed * 7) % kStarts, count);
}

// The sums that clients get when each adds 1: 1 to as many as there are clients, each once. An echo does not count.
class Sums {
 public:
  explicit Sums(const Plan& plan) : echo_(plan.echo), seen_(plan.clients) {}

  // True: it is the last. Throws LoadError for a sum that cannot be.
  bool take(std::int64_t sum) {
    ++taken_;
    const auto index = static_cast<std::size_t>(sum - 1);
    if (!echo_ && (sum < 1 || index >= seen_.size() || seen_[index])) {
      throw LoadError("reply to add: " + std::to_string(sum) + ", which is not within 1.." +
                      std::to_string(seen_.size()) + " or another client's already");
    }
    if (!echo_) {
      seen_[index] = true;
    }
    return echo_ ? taken_ == seen_.size() : index + 1 == seen_.size();
  }

 private:
  const bool echo_;
  std::size_t taken_ = 0;
  std::vector<bool> seen_;
};

// Every client adds 1; the last to arrive sets the key that all others wait for.
class Barrier final : public Workload {
 public:
  explicit Barrier(const Plan& plan) : Workload(plan), states_(plan.clients), sums_(plan.rounds, Sums(plan)) {}

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
    State& state = states_[client];
    state.last = sums_[state.round].take(value);
  }

 private:
  struct State {
    std::size_t round = 0;
    bool arrived = false;
    bool last = false;
  };
  std::vector<State> states_;
  std::vector<Sums> sums_;  // of each round
};

// gloo's full mesh: every client sets its blob, then, one after the other, gloo waits for a peer's, TCPStore's get
// waits again, and gets it. In the `start` of a job each has added 1 before, and gets the blobs of all.
class Mesh final : public Workload {
 public:
  Mesh(const Plan& plan, bool start)
      : Workload(plan),
        start_(start),
        sums_(plan),
        bytes_(std::min(kBlobBytes + kBlobBytesPerRank * plan.clients, start ? kPatternLimit : kMeshBlobLimit)) {
    for (std::size_t client = 0; client < plan.clients; ++client) {
      keys_.push_back(plan.prefix + "/default_pg/0//cpu//0/" + std::to_string(client));
    }
  }

  Next next(std::size_t client, Exchange& exchange) override {
    std::size_t step = steps_[client]++;
    if (start_ && step-- == 0) {
      exchange.add(plan_.prefix + "init/", 1);
      return Next::kSend;
    }
    if (step == 0) {
      exchange.set(keys_[client], pattern(client, bytes_));
      return Next::kSend;
    }
    const std::size_t turn = (step - 1) / 3;
    if (turn == (start_ ? plan_.clients : kPeers)) {
      return Next::kDone;
    }
    const std::size_t apart = std::max<std::size_t>(1, plan_.clients / kPeers);
    const std::size_t peer = start_ ? turn : (client + 1 + turn * apart) % plan_.clients;
    if ((step - 1) % 3 == 2) {
      exchange.get(keys_[peer], pattern(peer, bytes_));
    } else {
      exchange.wait(keys_[peer], (step - 1) % 3 == 0);
    }
    return Next::kSend;
  }

  void number(std::size_t /*client*/, std::int64_t value) override { sums_.take(value); }

 private:
  const bool start_;
  Sums sums_;
  const std::size_t bytes_;
  std::vector<std::string> keys_;
};

// NCCL's pattern: all wait for one key and get it; the last client sets it once the others wait.
class OneKey final : public Workload {
 public:
  explicit OneKey(const Plan& plan) : Workload(plan), waiting_(plan.rounds) {}

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
        setter_waits_for_.reset();
        released_ = plan_.clients - 1;
      }
    }
    return Next::kSend;
  }

 private:
  std::vector<std::size_t> waiting_;  // clients that have asked, of each round
  std::optional<std::size_t> setter_waits_for_;  // the round
};

// The small values that "multi_get" reads: the first client sets them.
class Fill final : public Workload {
 public:
  using Workload::Workload;
  static std::string key(const Plan& plan, std::size_t index) {
    return plan.prefix + "/small/" + std::to_string(1000 + index);
  }

  Next next(std::size_t client, Exchange& exchange) override {
    const std::size_t step = steps_[client]++;
    if (client != 0 || step == kSmallKeys + 1) {
      return Next::kDone;
    }
    if (step < kSmallKeys) {
      exchange.set(key(plan_, step), pattern(step, kSmallBytes));
    } else {
      exchange.get(key(plan_, step - 1), pattern(step - 1, kSmallBytes));
    }
    return Next::kSend;
  }
};

// Every client waits for 64 keys and gets them in one request. Neighbours ask for different, overlapping keys.
class MultiGet final : public Workload {
 public:
  explicit MultiGet(const Plan& plan) : Workload(plan) {
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

  std::string keys_, values_;
};

// torch's own barrier. Nobody comes out of a round before all have come in.
class StoreBarrier final : public Workload {
 public:
  explicit StoreBarrier(const Plan& plan) : Workload(plan), arrived_(plan.rounds) {}

  Next next(std::size_t client, Exchange& exchange) override {
    const std::size_t round = steps_[client];
    if (round > 0 && arrived_[round - 1] < plan_.clients) {
      throw LoadError("reply to barrier " + std::to_string(round - 1) + ", at which only " +
                      std::to_string(arrived_[round - 1]) + " of " + std::to_string(plan_.clients) + " have arrived");
    }
    if (round == plan_.rounds) {
      return Next::kDone;
    }
    ++steps_[client];
    ++arrived_[round];
    exchange.barrier(plan_.prefix + "/barrier/" + std::to_string(round), plan_.clients);
    return Next::kSend;
  }

 private:
  std::vector<std::size_t> arrived_;  // of each round
};

}  // namespace

std::unique_ptr<Workload> make_workload(const Plan& plan) {
  const std::string& name = plan.workload;
  if (name == "barrier") return std::make_unique<Barrier>(plan);
  if (name == "mesh" || name == "gloo") return std::make_unique<Mesh>(plan, name == "gloo");
  if (name == "one_key") return std::make_unique<OneKey>(plan);
  if (name == "fill") return std::make_unique<Fill>(plan);
  if (name == "multi_get") return std::make_unique<MultiGet>(plan);
  if (name == "store_barrier") return std::make_unique<StoreBarrier>(plan);
  throw std::invalid_argument("there is no workload '" + name + "'");
}

}  // namespace rdzv::load
