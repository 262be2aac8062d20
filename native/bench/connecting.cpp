#include "connecting.hpp"

#include <sys/epoll.h>

#include <optional>

#include "errors.hpp"

namespace rdzv::load {

Connecting::Connecting(const ConnectPlan& plan, const Place& server, bool echo, Poller& poller,
                       std::vector<Client>& clients)
    : plan_(plan),
      server_(server),
      poller_(poller),
      clients_(clients),
      exchange_(echo),
      states_(plan.count),
      began_ns_(plan.count) {}

Figures Connecting::run() {
  open_all();
  watch_.emplace(plan_.count);
  fill_window();
  const bool all = poller_.poll(
      plan_.limit_s,
      [this](std::size_t index, std::uint32_t events) {
        guarded(index, [&] { on_ready(index, events); });
        fill_window();
      },
      [this] { return ended_ == plan_.count; });
  Figures figures = watch_->stop();
  if (!all) {
    abandon();
  }
  figures.failures = std::move(failures_);
  return figures;
}

const Place& Connecting::place(std::size_t index) const {
  return plan_.places.empty() ? server_ : place_of(plan_.places, index, plan_.count);
}

// Before the clock starts: what a machine does to have so many sockets is not what its server does with them.
void Connecting::open_all() {
  for (std::size_t index = 0; index < plan_.count; ++index) {
    std::optional<in_addr> source;
    if (!plan_.sources.empty()) {
      source = parse_address(plan_.sources[index % plan_.sources.size()]);
    }
    clients_[index].open(place(index).address.ss_family, source);
  }
}

void Connecting::fill_window() {
  while (next_ < plan_.count && next_ - ended_ < plan_.window) {
    const std::size_t index = next_++;
    guarded(index, [&] { connect(index); });
  }
}

void Connecting::connect(std::size_t index) {
  began_ns_[index] = now_ns();
  states_[index] = State::kConnecting;
  clients_[index].connect(place(index));
  poller_.add(clients_[index].fd(), index);
}

void Connecting::on_ready(std::size_t index, std::uint32_t events) {
  Client& client = clients_[index];
  if (states_[index] == State::kConnecting) {
    if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
      client.established();
    }
    exchange_.connect(static_cast<std::uint32_t>(index) + 1);
    client.send(exchange_);
    watch_->count(exchange_.requests());
    states_[index] = State::kPinging;
  } else if (client.receive(events) && states_[index] == State::kPinging) {
    watch_->sample(began_ns_[index]);
    states_[index] = State::kReady;
    ++ended_;
  }
}

template <typename Action>
void Connecting::guarded(std::size_t index, Action action) {
  if (states_[index] == State::kFailed) {
    return;  // an event that was under way
  }
  try {
    action();
  } catch (const ConnectionLost& error) {
    if (!plan_.storm) {
      throw ConnectionLost("connect: connection " + std::to_string(index) + " of " + std::to_string(plan_.count) +
                           ": " + error.what());
    }
    ended_ += states_[index] == State::kReady ? 0 : 1;
    ++failures_[error.what()];
    states_[index] = State::kFailed;
    clients_[index].close();
  } catch (const LoadError& error) {
    throw LoadError("connect: connection " + std::to_string(index) + ": " + error.what());
  }
}

void Connecting::abandon() {
  const std::size_t missing = plan_.count - ended_;
  const std::string text = "no answer to ping within " + seconds_text(plan_.limit_s);
  if (!plan_.storm) {
    throw TimeLimit("connect: " + std::to_string(missing) + " of " + std::to_string(plan_.count) + " clients had " +
                    text);
  }
  failures_[text] += missing;
  for (std::size_t index = 0; index < plan_.count; ++index) {
    if (states_[index] != State::kReady) {
      clients_[index].close();
    }
  }
}

}  // namespace rdzv::load
