// A node of a run, as light as its two sockets: it joins, reaches the workers' store, and joins again. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "client.hpp"
#include "errors.hpp"
#include "place.hpp"
#include "session.hpp"
#include "told.hpp"

namespace rdzv::load {

// What the nodes of a run have in common.
struct Run {
  Place service;
  std::string id;
  std::uint32_t ttl_ms = 0;
  std::string settings;  // what the first node writes down of the job
  std::string alike;     // how that begins for each node of the job
};

struct NodeFacts {
  std::string id;
  std::string told;    // what it says of itself: a JSON object without its last brace and without what changes
  std::string source;  // the IPv4 address that it dials from; empty: the system's choice
};

// Its requests are those of a node that is an agent's (src/rdzv_plugins/elastic/joining.py), one after the other as
// there, and as many of them. It never leads, and serves nobody. What is wrong is thrown as LoadError; ConnectionLost
// only by the session, whose end is the node's.
class Node final : private Session::Listener {
 public:
  Node(const Run& run, NodeFacts facts);
  Node(Node&&) = default;

  void connect();
  void on_session(std::uint32_t events) { session_.on_ready(events, *this); }
  // Once `wants_store`; and what epoll says of it.
  void dial();
  void on_store(std::uint32_t events);
  void keep_alive();
  // It goes, and nobody is told but by the end of its connections.
  void close() noexcept;

  int session_fd() const { return session_.fd(); }
  int store_fd() const { return store_.fd(); }
  // It has begun to connect, and what it says of itself is not there yet.
  bool opening() const { return step_ != Step::kNew && step_ < Step::kThere; }
  bool wants_store() const { return dialling_ == Dialling::kWanted; }
  bool dialling() const { return dialling_ == Dialling::kUnderWay; }

  const std::string& id() const { return facts_.id; }
  std::size_t joins() const { return joins_; }
  // Of the round that it joined last; -1 and 0 before.
  std::int64_t rank() const { return rank_; }
  std::int64_t world() const { return world_; }
  std::int64_t round() const { return round_; }
  const Session::Counts& asked() const { return session_.counts(); }

 private:
  enum class Step : char { kNew, kOpening, kWatchingAll, kWatchingOwn, kComparing, kSaying, kThere };
  enum class Dialling : char { kNot, kWanted, kUnderWay };

  void on_reply(std::string_view payload) override;
  void on_event(std::string_view key, std::string_view value, bool gone) override;
  void on_told() override { act(); }

  void compare(std::string_view payload) const;
  void say();
  // Does what it has been told, as far as nothing is under way.
  void act();
  void follow();
  void enter();
  void leave();
  bool is_over() const;
  void dial_again(const ConnectionLost& error);

  const Run* run_;
  NodeFacts facts_;
  std::optional<in_addr> source_;
  Session session_;
  Client store_;
  Step step_ = Step::kNew;
  Dialling dialling_ = Dialling::kNot;
  bool connecting_ = false;  // to the store
  bool works_ = false;       // in round `round_`
  std::int64_t dialled_for_ = 0, reached_ = 0, after_ = 0;
  std::uint32_t attempts_ = 0;
  Assignment place_;
  Round declared_;
  std::size_t joins_ = 0;
  std::int64_t rank_ = -1, world_ = 0, round_ = 0;
};

}  // namespace rdzv::load
