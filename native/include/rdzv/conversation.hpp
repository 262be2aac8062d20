// One client's side of the protocol: bytes in, replies out, keys in between. Knows no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rdzv/server_access.hpp"
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
  Conversation(LoopContext& context, std::shared_ptr<Keyspace> keyspace, Peer& peer, void* owner)
      : context_(context), peer_(peer), owner_(owner) {
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

  // A client's write has no answer: when another one is told of it by other means and asks, it may lie in a socket that
  // is read later. So questions, see asks(), are answered when all that had been sent before them is read.
  enum class Questions : std::uint8_t {
    kLater,    // feed() stops before the first one
    kIfAlone,  // the same, save for one that is all that has come: it was sent before its event loop looked for events
    kNow,
  };

  // Runs the complete requests at the beginning of `bytes`; returns how many bytes they had. What is left over comes
  // again, with more behind it; it may hold complete requests when the replies have reached the high-water mark, or
  // when one took long: others are to have their turn. `wakes`: waiters, of any loop, to be told by the caller.
  std::size_t feed(std::string_view bytes, Output& reply, Wakes& wakes, Questions questions = Questions::kNow);

  // A waiter of this conversation was woken. False: it was cancelled meanwhile, nothing is to be sent.
  bool woken(const Waiter& waiter, Output& reply);

  // Changes that its session watches: what has been left for it since. False: there is nothing.
  bool pushed(Output& reply);
  // The client has sent something.
  void heard() {
    if (Lease* const mine = lease()) {
      mine->heard_ms = context_.running_ms();
    }
  }
  // Null: it may be silent for as long as it likes.
  Lease* lease() { return session_ ? &session_->lease : trunk_ ? &trunk_lease_ : nullptr; }
  // Null: it has none. Few have.
  Session* session() const { return session_.get(); }
  // When its connection closes: the others hear of it by `LoopContext::pushes`.
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
  const std::shared_ptr<Trunk>& trunk() const { return trunk_; }
  std::uint64_t token() const { return trunk_ ? trunk_->traits().token : 0; }
  void refuse_for_root(Refusal why) { refuse(why); }

  // Not kNone: the connection is to be closed, with this reason.
  Refusal refusal() const { return refusal_; }
  // The last feed() left requests that may be complete.
  bool stopped_early() const { return stopped_early_; }
  // And the first of them is a question, which waits for its time; it was all that had come.
  bool held_back() const { return held_back_; }
  bool asks_alone() const { return held_back_ && alone_; }
  // Memory for an answer that is not complete.
  std::size_t gathered() const { return listing_ ? listing_->bytes() : 0; }
  bool greeted() const { return phase_ != Phase::kGreeting; }
  const Keyspace& keyspace() const { return *keyspace_; }
  bool pauses() { return keyspace_->pause.check(); }

 private:
  enum class Phase : std::uint8_t { kGreeting, kStore, kFramed, kTrunk };

  // Each returns the bytes used, 0 when more have to come or the client is refused.
  std::size_t greet(std::string_view bytes, Output& reply);
  std::size_t request(std::string_view bytes, Output& reply, Wakes& wakes);
  std::size_t frame(std::string_view bytes, Output& reply, Wakes& wakes);
  std::size_t refuse(Refusal why);
  // True: the question at the beginning of what is there has to wait. `whole`: nothing is there behind it.
  bool holds_back(bool whole);

  // Operations of coordination; coordination_frames.cpp.
  void coordinate(Operation operation, std::uint32_t id, std::string_view payload, Output& reply);
  void open_session(std::uint32_t id, Payload& payload, Output& reply);
  void put(std::uint32_t id, Payload& payload, std::size_t size, Output& reply);
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
  const std::shared_ptr<RelayClient>& relay_client();

  // A write has found that proxies hold the value: false if they do not any more.
  bool wait_for_holders(const std::vector<KeyView>& keys);
  void enter(std::shared_ptr<Keyspace> keyspace);
  void execute(Query query, Fields fields, Output& reply, Wakes& wakes);
  // A part at each call: there is another one while `listing_` is.
  void list_keys(Output& reply);
  void wait(Keyspace::Keys keys, Output& reply);
  void barrier(std::string_view key, std::int64_t world_size, Output& reply, Wakes& wakes);
  // Those of `wakes` from `first` on that are this client's: their answers come before those to later requests.
  void answer_own(std::size_t first, Output& reply, Wakes& wakes);
  bool may_wait(std::size_t keys);
  void keep(std::shared_ptr<Waiter> waiter);
  void cancel_waits();
  WaitOwner owner() { return {context_.loop, owner_, &peer_, context_.now_ms, context_.turn}; }

  LoopContext& context_;
  std::shared_ptr<Keyspace> keyspace_;
  Peer& peer_;
  void* const owner_;
  std::vector<std::shared_ptr<Waiter>> waits_;
  std::size_t waited_keys_ = 0;  // of all of them
  Scanner scanner_;
  std::unique_ptr<Session> session_;
  Keyspace::Writer writer_;
  std::unique_ptr<KeyList> listing_;  // the answer to LIST_KEYS, as far as it is gathered
  std::shared_ptr<Waiter> holders_;  // who have to give up a value before the next request
  std::shared_ptr<RelayClient> relay_client_;
  std::shared_ptr<Trunk> trunk_;
  std::shared_ptr<Subscriber> subscriber_;
  Lease trunk_lease_;
  std::deque<std::string> queued_;   // frames that have come behind one that has to wait
  std::size_t queued_bytes_ = 0;
  Phase phase_ = Phase::kGreeting;
  Refusal refusal_ = Refusal::kNone;
  Questions questions_ = Questions::kNow;
  bool stopped_early_ = false;
  bool held_back_ = false;
  bool first_ = false;  // nothing was run before it by this feed()
  bool alone_ = false;
  bool took_long_ = false;
  bool suspended_ = false;
};

// The keys that a request writes.
std::vector<KeyView> keys_written(Query query, Fields fields);
// Whether a request may store something.
bool writes(Query query);

}  // namespace rdzv
