// Conversations and the reference store, given the same bytes: whatever differs is an error. For random tests and for
// the fuzzer.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "reference_store.hpp"
#include "talk.hpp"

namespace rdzv::test {

class Lockstep {
 public:
  static constexpr std::size_t kClients = 3;

  explicit Lockstep(const Limits& limits);

  // These throw std::runtime_error with what differs.
  // Nothing happens if the client was refused.
  void say(std::size_t client, std::string_view bytes);
  // Leaves, and connects anew.
  void leave(std::size_t client);
  void wipe();
  // All leave. Nothing may be left of them.
  void finish();

  Refusal refusal(std::size_t client) const { return clients_[client].refusal; }
  std::uint64_t requests() const { return requests_run_; }

 private:
  enum class Phase { kGreeting, kStore, kFramed };
  struct Client {
    std::unique_ptr<Talk> talk;
    Phase phase = Phase::kGreeting;
    std::size_t store = 0;  // index into stores_
    std::string left;       // what it has said and the server has not used
    Expected expected;
    Refusal refusal = Refusal::kNone;
    bool session = false;      // is open
    bool coordinates = false;  // from here on its replies are not compared
  };

  void connect(std::size_t client);
  void feed(std::size_t client, std::string_view bytes);
  // Runs what is complete at the beginning of `bytes`, in the reference. Returns how many bytes.
  std::size_t run(std::size_t client, std::string_view bytes);
  std::size_t greet(Client& client, std::string_view bytes);
  std::size_t coordinate(Client& client, std::uint8_t operation, const std::string& payload);
  std::size_t frame(std::size_t client, std::string_view bytes);
  std::size_t request(std::size_t client, std::string_view bytes);
  void compare_replies();
  void compare_keyspaces();

  Room room_;
  std::array<ReferenceStore, 2> stores_;  // the port's, and the one that can be entered
  std::array<Client, kClients> clients_;
  std::array<std::uint64_t, kQueryCount> requests_{};
  std::uint64_t requests_run_ = 0, frames_ = 0;
  bool proxies_ = false;  // there was one: what it has done is not known here
};

}  // namespace rdzv::test
