// A second store: one map, many clients, no threads; what the conversations answer is compared with it.
// Written from torch's semantics (see PROTOCOL.md for where ours differ on purpose), not from the keyspace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "expected.hpp"
#include "rdzv/limits.hpp"
#include "reference_parser.hpp"

namespace rdzv::test {

class ReferenceStore {
 public:
  explicit ReferenceStore(const Limits& limits) : limits_(limits) {}

  void greet(std::size_t client);
  // Runs one request. Whom else it wakes hears of it with deliver().
  void execute(std::size_t client, const Parsed& request);
  void leave(std::size_t client);
  void wipe();
  void deliver();
  // What the client was to hear since the last call.
  Expected take(std::size_t client);

  Refusal refusal(std::size_t client) const { return clients_.at(client).refusal; }
  void refuse(std::size_t client, Refusal why) { clients_.at(client).refusal = why; }
  bool waits(std::size_t client) const { return !clients_.at(client).waits.empty(); }
  std::size_t keys() const { return values_.size(); }
  std::size_t stored_bytes() const;
  std::size_t filled_queues() const { return queues_.size(); }
  std::set<std::string> waited_keys() const;

 private:
  struct Wait {
    std::size_t nodes = 0;    // keys that were missing when it began
    std::size_t missing = 0;  // keys that are still missing
    bool woken = false;
  };
  using WaitRef = std::shared_ptr<Wait>;
  struct Standing {
    WaitRef wait;
    std::int64_t threshold;
  };
  struct ClientState {
    Refusal refusal = Refusal::kNone;
    Expected heard;
    std::list<WaitRef> waits;
  };

  void run(ClientState& client, const Parsed& request);
  void deliver(ClientState& client);
  static void wake(const WaitRef& wait);
  void wake_one(const std::string& key);
  bool present(const std::string& key) const { return values_.count(key) > 0 || queues_.count(key) > 0; }
  std::optional<std::int64_t> number(const std::string& key) const;
  void write(const std::string& key, std::string value);
  std::optional<std::int64_t> add(const std::string& key, std::int64_t delta);
  bool may_wait(ClientState& client, std::size_t keys);
  void wait(ClientState& client, const std::vector<std::string>& keys);
  void barrier(ClientState& client, const std::string& key, std::int64_t world_size);
  void compare_set(ClientState& client, const std::vector<std::string>& texts);
  void cancel(ClientState& client);

  const Limits limits_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::deque<std::string>> queues_;  // none is empty
  std::map<std::string, std::list<WaitRef>> waiting_;      // in the order in which they came
  std::map<std::string, std::list<Standing>> barriers_;
  std::map<std::size_t, ClientState> clients_;
};

}  // namespace rdzv::test
