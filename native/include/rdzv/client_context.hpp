// One client, whatever it speaks: where it is served, and how far its requests have come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "rdzv/served_keyspace.hpp"
#include "rdzv/gate.hpp"
#include "rdzv/peer.hpp"
#include "rdzv/protocol.hpp"
#include "rdzv/limits.hpp"
#include "rdzv/server_access.hpp"
#include "rdzv/waiter.hpp"

namespace rdzv {

// A client's write has no answer: when another one is told of it by other means and asks, it may lie in a socket that
// is read later. So questions, see asks(), are answered when all that had been sent before them is read.
enum class Questions : std::uint8_t {
  kLater,    // nothing is run from the first one on
  kIfAlone,  // the same, save for one that is all that has come: it was sent before its event loop looked for events
  kNow,
};

struct ClientContext {
  // `of_peer` outlives it, and is where waiters say who they are. `of_owner`: how its event loop finds it back from a
  // waiter.
  // `needs_token`: nothing is served before one was proved, and then what it was proved for.
  ClientContext(LoopContext& of_loop, std::shared_ptr<ServedKeyspace> entered, Peer& of_peer, void* of_owner,
                bool needs_token)
      : loop(of_loop), peer(of_peer), owner(of_owner), guarded(needs_token), keyspace(std::move(entered)) {
    keyspace->connections.fetch_add(1, std::memory_order_relaxed);
  }
  ClientContext(const ClientContext&) = delete;
  ClientContext& operator=(const ClientContext&) = delete;
  ~ClientContext() { keyspace->connections.fetch_sub(1, std::memory_order_relaxed); }

  void enter(std::shared_ptr<ServedKeyspace> other) {
    keyspace->connections.fetch_sub(1, std::memory_order_relaxed);
    keyspace = std::move(other);
    keyspace->connections.fetch_add(1, std::memory_order_relaxed);
  }
  // Returns 0, as Protocol::run() does then.
  std::size_t refuse(Refusal why) {
    refusal = why;
    return 0;
  }
  bool is_refused() const { return refusal != Refusal::kNone; }
  // True: the question at the beginning of what is there has to wait. `whole`: nothing is there behind it.
  bool holds_back(bool whole) {
    alone = whole && first;
    held_back = questions == Questions::kLater || (questions == Questions::kIfAlone && !alone);
    stopped_early |= held_back;
    return held_back;
  }
  void go_on() {
    suspended = false;
    stopped_early = true;  // there may be requests here
  }
  bool may(Purpose purpose) const { return !guarded || (gate.admission() && gate.admission()->purpose == purpose); }
  // The only run that it may open a session for; nothing: any that is served.
  const std::string* only_run() const { return guarded ? &gate.admission()->run : nullptr; }
  // Whose a run is that it opens: of nobody where no token is needed.
  std::string_view token_name() const { return guarded ? std::string_view(gate.admission()->owner) : std::string_view(); }
  WaitOwner wait_owner() const { return {loop.loop, owner, &peer, loop.now_ms, loop.turn}; }

  LoopContext& loop;
  Peer& peer;
  void* const owner;
  const bool guarded;
  Gate gate;
  std::shared_ptr<ServedKeyspace> keyspace;
  std::unique_ptr<Protocol> next;  // what it speaks from the next byte on, if that changes
  Refusal refusal = Refusal::kNone;
  Questions questions = Questions::kNow;
  bool stopped_early = false;
  bool held_back = false;
  bool first = false;  // nothing was run before it by this feed()
  bool alone = false;
  bool took_long = false;
  bool suspended = false;  // waits for something that its next request needs
};

}  // namespace rdzv
