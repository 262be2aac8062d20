// One client's side of what it says: bytes in, replies out, keys in between. Greets, and then leaves it to a Protocol.
// Knows no sockets.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "rdzv/client_context.hpp"
#include "rdzv/clock.hpp"
#include "rdzv/output.hpp"
#include "rdzv/protocol.hpp"
#include "rdzv/trunk.hpp"

namespace rdzv {

class Conversation {
 public:
  // Replies beyond this size wait until the client has read some: its next requests stay where they are.
  static constexpr std::size_t kHighWater = 1 << 20;

  // See ClientContext.
  Conversation(LoopContext& context, std::shared_ptr<ServedKeyspace> keyspace, Peer& peer, void* owner,
               bool guarded = false)
      : client_(context, std::move(keyspace), peer, owner, guarded) {}
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;
  ~Conversation() { end(); }

  // Runs the complete requests at the beginning of `bytes`; returns how many bytes they had. What is left over comes
  // again, with more behind it; it may hold complete requests when the replies have reached the high-water mark, or
  // when one took long: others are to have their turn. `wakes`: waiters, of any loop, to be told by the caller.
  std::size_t feed(std::string_view bytes, Output& reply, Wakes& wakes, Questions questions = Questions::kNow);

  // See Protocol.
  bool woken(const Waiter& waiter, Output& reply) { return protocol_ && protocol_->woken(waiter, reply); }
  bool pushed(Output& reply) { return protocol_ && protocol_->pushed(reply); }
  std::shared_ptr<Trunk> end() { return protocol_ ? protocol_->end() : nullptr; }
  Lease* lease() { return protocol_ ? protocol_->lease() : nullptr; }
  Session* session() const { return protocol_ ? protocol_->session() : nullptr; }
  std::size_t gathered() const { return protocol_ ? protocol_->gathered() : 0; }
  bool is_trunk() const { return protocol_ && protocol_->is_trunk(); }
  Trunk* trunk() const { return protocol_ ? protocol_->trunk() : nullptr; }

  // The client has sent something.
  void heard() {
    if (Lease* const mine = lease()) {
      mine->heard_ms = client_.loop.running_ms();
    }
  }

  // Waits for something that its next request needs: proxies that have to give up a value, or the root. Nothing is read
  // from a client meanwhile; a proxy's frames are, and wait here.
  bool suspended() const { return client_.suspended; }
  bool reads() const { return !client_.suspended || is_trunk(); }
  bool has_queued() const { return !client_.suspended && protocol_ && protocol_->has_queued(); }
  // In a proxy: the root's answer to the request that it waits for; or the moment to try that again.
  void answered(std::string_view raw, Output& reply) {
    go_on();
    reply.raw(raw);
  }
  void go_on() { client_.go_on(); }
  void refuse_for_root(Refusal why) { client_.refuse(why); }

  // Not kNone: the connection is to be closed, with this reason.
  Refusal refusal() const { return client_.refusal; }
  // The last feed() left requests that may be complete.
  bool stopped_early() const { return client_.stopped_early; }
  // And the first of them is a question, which waits for its time; it was all that had come.
  bool held_back() const { return client_.held_back; }
  bool asks_alone() const { return client_.held_back && client_.alone; }
  bool greeted() const { return protocol_ != nullptr; }
  const Keyspace& keyspace() const { return *client_.keyspace; }
  bool pauses() { return client_.keyspace->pause.check(); }

 private:
  // Returns the bytes used, 0 when more have to come or the client is refused.
  std::size_t greet(std::string_view bytes, Output& reply);
  std::size_t pass_gate(std::string_view bytes, Output& reply);

  ClientContext client_;
  std::unique_ptr<Protocol> protocol_;  // null: it has not greeted
};

}  // namespace rdzv
