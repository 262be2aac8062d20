// Nodes of one run, all driven by the calling thread. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "node.hpp"
#include "poller.hpp"

namespace rdzv::load {

class Nodes {
 public:
  // See Poller for `check`. Throws LoadError.
  Nodes(Run run, std::vector<NodeFacts> facts, std::function<void()> check);
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  // They begin to join, one straight after the other, as far as `drive` is called. Returns when, in seconds.
  double join();
  // From now on `drive` waits for so many joins.
  void expect(std::size_t joins);
  // Lets them live until those joins were made (true), or until the descriptor `wake` has something to read or is
  // closed by its other end (false). Throws LoadError, which names the node.
  bool drive(int wake);
  // Node `index` goes.
  void close(std::size_t index);

  // When the last join was made, in seconds of the monotonic clock; how many were made since `expect`.
  double last() const { return static_cast<double>(last_ns_) / 1e9; }
  std::size_t joined() const { return joined_; }
  const std::vector<Node>& all() const { return nodes_; }

 private:
  void on_ready(std::size_t id, std::uint32_t events);
  // Does something with a node, and sees what has become of it.
  template <typename Action>
  void act(std::size_t index, Action action);
  void fill_windows();
  void tick();
  bool all_joined() const { return wanted_ > 0 && joined_ >= wanted_; }

  const Run run_;
  const std::function<void()> check_;
  Poller poller_;
  std::vector<Node> nodes_;
  std::size_t next_ = 0;                            // node to connect
  std::size_t opening_ = 0, dialling_ = 0;          // nodes that are at it
  std::deque<std::size_t> to_dial_;                 // nodes that want to reach the workers' store
  std::deque<std::size_t> to_dial_later_;           // those that have failed
  std::size_t wanted_ = 0, joined_ = 0;
  std::uint64_t last_ns_ = 0;
  bool begun_ = false, woken_ = false;
  int wake_ = -1;
};

}  // namespace rdzv::load
