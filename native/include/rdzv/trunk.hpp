// A proxy's connection to its root, as the root has it: it outlives the socket by the proxy's grace. See PROTOCOL.md.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rdzv/frame_log.hpp"
#include "rdzv/framing.hpp"
#include "rdzv/holder.hpp"
#include "rdzv/peer.hpp"
#include "rdzv/subscriber.hpp"
#include "rdzv/waiter.hpp"

namespace rdzv {

class ServedKeyspace;
struct RelayClient;

class Trunk final : public Holder, public std::enable_shared_from_this<Trunk> {
 public:
  struct Traits {
    std::uint64_t token = 0;
    std::string name;
    bool leaf = true;  // no proxy is behind it: its own writes need not be recalled from it
    std::int64_t grace_ms = 0;
  };

  // `most`: bytes that may wait for the proxy.
  Trunk(std::shared_ptr<ServedKeyspace> keyspace, Traits traits, std::size_t most)
      : traits_(std::move(traits)), keyspace_(std::move(keyspace)), most_(most) {}

  const Traits& traits() const { return traits_; }
  // For how long its proxy, and those behind it, hold values after they have last heard that they may.
  std::int64_t hold_ms() const { return rdzv::hold_ms(traits_.grace_ms) * (traits_.leaf ? 1 : 2); }
  const ServedKeyspace& keyspace() const { return *keyspace_; }
  const Peer& peer() const { return peer_; }

  // Whoever runs its requests, or takes it over, holds this: an old connection and a new one never do so at one time.
  std::mutex working;
  std::uint64_t run = 0;  // how many counted requests have been; guarded by `working`
  std::shared_ptr<RelayClient> relay_client{};  // in a proxy: its side of the relay, which outlives a connection, too

  // As Holder; what is pushed is counted. All that follows is thread-safe.
  void push(std::uint32_t id, FrameStatus status, std::string_view payload, Pushes& pushes) override;
  void push_value(std::uint32_t id, std::uint32_t granted, std::string_view value, Pushes& pushes) override;
  std::uint32_t epoch() override;
  std::uint32_t granting() override;
  bool ask_back(std::uint32_t epoch, std::string_view key, const std::shared_ptr<Recall>& recall, Pushes& pushes) override;
  void keep(const std::shared_ptr<Waiter>& waiter) override;
  std::shared_ptr<Waiter> forget(std::uint32_t id) override;
  bool replaces_its_own() const override { return traits_.leaf; }
  std::weak_ptr<Holder> weak() override { return weak_from_this(); }

  // The proxy has given up what it was asked for. An unknown number is one that was sent twice.
  void given_up(std::uint32_t number, Wakes& wakes);
  // When it has to have given up what it was asked for first, by monotonic_ms(); INT64_MAX: nothing. If it is honest it
  // holds that no more then, whether it has heard of the recall or not.
  std::int64_t recall_due_ms();
  void postpone_recalls(std::int64_t ms);
  // It has not: others write, and for a while it is not given anything to hold, nor are other proxies of its host.
  void distrust(Wakes& wakes);
  // One of its waits was woken, on whatever thread.
  void woken(Waiter& waiter, Pushes& pushes);
  bool waits(std::uint32_t id);

  // A connection takes over; `received`: how many counted frames the proxy has. False: that cannot be.
  // `resent`: how many of the next frames are from before.
  bool attach(std::shared_ptr<Subscriber> subscriber, const Peer& peer, std::uint64_t received, std::uint64_t& resent,
              Wakes& wakes);
  // The connection of that subscriber has ended. False: another one had taken over.
  // Times are those of the connection's loop, LoopContext::running_ms().
  // Its proxy may answer from what it holds until `held_until_ms`: what it does not know of this end can last so long.
  bool detach(const Subscriber* subscriber, std::int64_t now_ms, std::int64_t held_until_ms);
  bool attached_by(const Subscriber* subscriber);
  // Moves what is there for the proxy to the end of `reply`.
  struct Taken {
    bool any = false, overflown = false;
  };
  Taken take(const Subscriber* subscriber, Output& reply);
  bool acknowledge(std::uint64_t count);

  // If its proxy has left: lets others write what it held, and forgets it, each when it is time.
  std::vector<std::string> expire(std::int64_t now_ms, Wakes& wakes);
  std::int64_t held_until_ms();
  // Returns the keys that it has waited for.
  std::vector<std::string> end(Wakes& wakes);

  void report(std::string_view text);
  struct Summary {
    std::string name, address, report;
    bool attached = false;
    std::size_t follows = 0;
  };
  Summary summary();

 private:
  void push_locked(std::uint32_t id, FrameStatus status, std::string_view payload, Pushes& pushes);
  void distrust_until(std::int64_t when_ms);
  void let_go(Wakes& wakes);  // of all that was held by the connection

  const Traits traits_;
  const std::shared_ptr<ServedKeyspace> keyspace_;
  const std::size_t most_;
  Peer peer_;  // of the first connection
  std::mutex mutex_;  // guards what follows
  FrameLog log_;
  std::shared_ptr<Subscriber> subscriber_;  // of the connection; null: there is none
  bool rung_ = false;
  bool ended_ = false;
  std::int64_t left_ms_ = 0, held_until_ms_ = 0;
  std::uint32_t epoch_ = 0, last_epoch_ = 0;
  std::uint32_t last_recall_ = 0;
  struct Asked {
    std::shared_ptr<Recall> recall;
    std::int64_t since_ms = 0;
  };
  std::map<std::uint32_t, Asked> recalls_;  // the oldest first
  std::int64_t distrusted_until_ms_ = 0;
  std::unordered_map<std::uint32_t, std::shared_ptr<Waiter>> waits_;
  std::string report_;
};

// Those of `wakes` that are of trunks are told, and taken out.
void tell_trunks(Wakes& wakes, Pushes& pushes);

}  // namespace rdzv
