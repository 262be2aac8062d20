// One client's side of the protocol: bytes in, replies out, keys in between. Knows no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rdzv/desk.hpp"
#include "rdzv/fields.hpp"
#include "rdzv/framing.hpp"
#include "rdzv/keyspace.hpp"
#include "rdzv/output.hpp"
#include "rdzv/payload.hpp"
#include "rdzv/peer.hpp"
#include "rdzv/relay.hpp"
#include "rdzv/scanner.hpp"
#include "rdzv/spaces.hpp"
#include "rdzv/trunk.hpp"

namespace rdzv {

class Conversation {
 public:
  // Replies beyond this size wait until the client has read some: its next requests stay where they are.
  static constexpr std::size_t kHighWater = 1 << 20;

  // `peer` outlives the conversation, and is where waiters say who they are. `owner`: how its event loop finds it back
  // from a waiter.
  Conversation(Surroundings& around, std::shared_ptr<Keyspace> keyspace, Peer& peer, void* owner)
      : around_(around), peer_(peer), owner_(owner) {
    enter(std::move(keyspace));
  }
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;
  ~Conversation() {
    cancel_waits();
    end_session();
    end_trunk();
    keyspace_->connections.fetch_sub(1, std::memory_order_relaxed);
  }

  // Runs the complete requests at the beginning of `bytes`; returns how many bytes they had. What is left over comes
  // again, with more behind it; it may hold complete requests when the replies have reached the high-water mark, or
  // when one took long: others are to have their turn. `wakes`: waiters, of any loop, to be told by the caller.
  std::size_t feed(std::string_view bytes, Output& reply, Wakes& wakes);

  // A waiter of this conversation was woken. False: it was cancelled meanwhile, nothing is to be sent.
  bool woken(const Waiter& waiter, Output& reply);

  // Changes that its session watches: what has been left for it since. False: there is nothing.
  bool pushed(Output& reply);
  // The client has sent something.
  void heard() {
    if (Lease* const mine = lease()) {
      mine->heard_ms = around_.now_ms;
    }
  }
  // Null: it may be silent for as long as it likes.
  Lease* lease() { return session_ ? &session_->lease : trunk_ ? &trunk_lease_ : nullptr; }
  // Null: it has none. Few have.
  Session* session() const { return session_.get(); }
  // When its connection closes: the others hear of it by `Surroundings::pushes`.
  void end_session();

  // When its connection closes: what it had is kept for the proxy's grace. Null: it is no trunk, or another connection
  // has taken over.
  std::shared_ptr<Trunk> end_trunk();

  // Waits for something that its next request needs: proxies that have to give up a value, or the root. Nothing is read
  // from a client meanwhile; a proxy's frames are, and wait here.
  bool suspended() const { return suspended_; }
  bool reads() const { return !suspended_ || phase_ == Phase::kTrunk; }
  bool has_queued() const { return !queued_.empty() && !suspended_; }
  // In a proxy: the root's answer to the request that it waits for; or the moment to try that again.
  void answered(std::string_view raw, Output& reply) {
    go_on();
    reply.raw(raw);
  }
  void go_on() {
    suspended_ = false;
    stopped_early_ = true;  // there may be requests here
  }
  bool is_trunk() const { return phase_ == Phase::kTrunk; }
  std::uint64_t token() const { return trunk_ ? trunk_->traits().token : 0; }
  void refuse_for_root(Refusal why) { refuse(why); }

  // Not kNone: the connection is to be closed, with this reason.
  Refusal refusal() const { return refusal_; }
  // The last feed() left requests that may be complete.
  bool stopped_early() const { return stopped_early_; }
  bool greeted() const { return phase_ != Phase::kGreeting; }
  const Keyspace& keyspace() const { return *keyspace_; }

 private:
  enum class Phase : std::uint8_t { kGreeting, kStore, kFramed, kTrunk };

  // Each returns the bytes used, 0 when more have to come or the client is refused.
  std::size_t greet(std::string_view bytes, Output& reply);
  std::size_t request(std::string_view bytes, Output& reply, Wakes& wakes);
  std::size_t frame(std::string_view bytes, Output& reply, Wakes& wakes);
  std::size_t refuse(Refusal why);

  // Operations of coordination; coordination_frames.cpp.
  void coordinate(Operation operation, std::uint32_t id, std::string_view payload, Output& reply);
  void open_session(std::uint32_t id, Payload& payload, Output& reply);
  void put(std::uint32_t id, Payload& payload, Output& reply);
  void remove(std::uint32_t id, Payload& payload, Output& reply);
  void list(std::uint32_t id, Payload& payload, Output& reply);
  void watch(std::uint32_t id, Payload& payload, Output& reply);
  void unwatch(std::uint32_t id, Payload& payload, Output& reply);
  // Refuses a payload that is not what it has to be, and objects if there is no session. False: that is done.
  bool in_session(std::uint32_t id, const Payload& payload, Output& reply);
  // After what was pushed before.
  void answer_session(std::uint32_t id, std::string_view payload, Output& reply);

  // trunk_frames.cpp
  void attach(std::uint32_t id, std::string_view payload, Output& reply, Wakes& wakes);
  std::size_t trunk_frame(std::string_view bytes, Output& reply, Wakes& wakes);
  void drain(Wakes& wakes);
  void say(Operation operation, std::string_view payload, Output& reply, Wakes& wakes);
  // False: it has to wait, and is to be run again.
  bool run(Operation operation, std::uint32_t id, std::string_view payload, Wakes& wakes);
  bool forward(std::uint32_t id, std::string_view raw, Wakes& wakes);
  bool arrive(std::uint32_t id, Payload& payload, Wakes& wakes);
  void unfollow(std::uint32_t id);
  WaitOwner waits_for(std::uint32_t id, bool sticky);

  // relayed_requests.cpp, in a proxy
  std::size_t relayed(Query query, std::string_view raw, Output& reply, Wakes& wakes);
  bool answers_here(Query query, Fields fields) const;
  void relay_wait(Keyspace::Keys keys, Output& reply);
  bool relay_forward(std::uint32_t id, Query query, std::string_view raw);
  void relay_barrier(std::string_view key, std::int64_t world_size);
  const std::shared_ptr<Guest>& guest();

  // A write has found that proxies hold the value: false if they do not any more.
  bool wait_for_holders(const std::vector<KeyView>& keys);
  void enter(std::shared_ptr<Keyspace> keyspace);
  void execute(Query query, Fields fields, Output& reply, Wakes& wakes);
  void wait(Keyspace::Keys keys, Output& reply);
  void barrier(std::string_view key, std::int64_t world_size, Output& reply, Wakes& wakes);
  // Those of `wakes` from `first` on that are this client's: their answers come before those to later requests.
  void answer_own(std::size_t first, Output& reply, Wakes& wakes);
  bool may_wait(std::size_t keys);
  void keep(std::shared_ptr<Waiter> waiter);
  void cancel_waits();
  WaitOwner owner() { return {around_.loop, owner_, &peer_, around_.now_ms, around_.turn}; }

  Surroundings& around_;
  std::shared_ptr<Keyspace> keyspace_;
  Peer& peer_;
  void* const owner_;
  std::vector<std::shared_ptr<Waiter>> waits_;
  std::size_t waited_keys_ = 0;  // of all of them
  Scanner scanner_;
  std::unique_ptr<Session> session_;
  Keyspace::Writer writer_;
  std::shared_ptr<Waiter> holders_;  // who have to give up a value before the next request
  std::shared_ptr<Guest> guest_;
  std::shared_ptr<Trunk> trunk_;
  std::shared_ptr<Subscriber> bell_;
  Lease trunk_lease_;
  std::deque<std::string> queued_;   // frames that have come behind one that has to wait
  std::size_t queued_bytes_ = 0;
  Phase phase_ = Phase::kGreeting;
  Refusal refusal_ = Refusal::kNone;
  bool stopped_early_ = false;
  bool took_long_ = false;
  bool suspended_ = false;
};

// The keys that a request writes.
std::vector<KeyView> keys_written(Query query, Fields fields);

}  // namespace rdzv
