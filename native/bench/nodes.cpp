#include "nodes.hpp"

#include <sys/epoll.h>

#include <limits>
#include <utility>

#include "clock.hpp"
#include "errors.hpp"

namespace rdzv::load {

namespace {

constexpr std::size_t kWake = std::numeric_limits<std::size_t>::max();
// Connections under way at a time, to the service and to the workers' store: a listener that is asked by more at once
// makes them wait for a second, by TCP's retransmission, which would measure that.
constexpr std::size_t kWindow = 512;
constexpr double kForEverS = 1e8;

}  // namespace

Nodes::Nodes(Run run, std::vector<NodeFacts> facts, std::function<void()> check)
    : run_(std::move(run)), check_(std::move(check)), poller_([this] { tick(); }) {
  nodes_.reserve(facts.size());
  for (NodeFacts& each : facts) {
    nodes_.emplace_back(run_, std::move(each));
  }
}

double Nodes::join() {
  begun_ = true;
  return static_cast<double>(now_ns()) / 1e9;
}

void Nodes::expect(std::size_t joins) {
  wanted_ = joins;
  joined_ = 0;
}

bool Nodes::drive(int wake) {
  if (wake_ != wake) {
    poller_.add(wake, kWake);
    wake_ = wake;
  }
  fill_windows();
  poller_.poll(
      kForEverS,
      [this](std::size_t id, std::uint32_t events) {
        on_ready(id, events);
        fill_windows();
      },
      [this] { return woken_ || all_joined(); });
  if (all_joined()) {
    wanted_ = 0;
    return true;
  }
  woken_ = false;
  return false;
}

void Nodes::close(std::size_t index) {
  act(index, [](Node& node) { node.close(); });
}

void Nodes::on_ready(std::size_t id, std::uint32_t events) {
  if (id == kWake) {
    woken_ = woken_ || (events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0;
    return;
  }
  act(id / 2, [&](Node& node) {
    if (id % 2 == 0 && node.session_fd() >= 0) {  // else an event of a socket that was closed meanwhile
      node.on_session(events);
    } else if (id % 2 != 0 && node.store_fd() >= 0) {
      node.on_store(events);
    }
  });
}

template <typename Action>
void Nodes::act(std::size_t index, Action action) {
  Node& node = nodes_[index];
  const bool opening = node.opening(), dialling = node.dialling(), wanted = node.wants_store();
  const std::size_t joins = node.joins();
  try {
    action(node);
  } catch (const LoadError& error) {
    throw LoadError("simulated node " + node.id() + ": " + error.what());
  }
  opening_ = opening_ + (node.opening() ? 1 : 0) - (opening ? 1 : 0);
  dialling_ = dialling_ + (node.dialling() ? 1 : 0) - (dialling ? 1 : 0);
  if (node.wants_store() && !wanted) {
    (dialling && node.store_fd() < 0 ? to_dial_later_ : to_dial_).push_back(index);
  }
  if (node.joins() > joins) {
    ++joined_;
    last_ns_ = now_ns();
  }
}

void Nodes::fill_windows() {
  while (begun_ && next_ < nodes_.size() && opening_ < kWindow) {
    const std::size_t index = next_++;
    act(index, [](Node& node) { node.connect(); });
    poller_.add(nodes_[index].session_fd(), 2 * index);
  }
  while (!to_dial_.empty() && dialling_ < kWindow) {
    const std::size_t index = to_dial_.front();
    to_dial_.pop_front();
    if (nodes_[index].wants_store()) {  // not if it has gone meanwhile
      act(index, [](Node& node) { node.dial(); });
      if (nodes_[index].store_fd() >= 0) {
        poller_.add(nodes_[index].store_fd(), 2 * index + 1);
      }
    }
  }
}

// About ten times a second.
void Nodes::tick() {
  check_();
  for (std::size_t index = 0; index < next_; ++index) {
    act(index, [](Node& node) { node.keep_alive(); });
  }
  to_dial_.insert(to_dial_.end(), to_dial_later_.begin(), to_dial_later_.end());
  to_dial_later_.clear();
  fill_windows();
}

}  // namespace rdzv::load
