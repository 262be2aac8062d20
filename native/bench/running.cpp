#include "running.hpp"

#include <optional>

#include "errors.hpp"

namespace rdzv::load {

Running::Running(const Plan& plan, Poller& poller, std::vector<Client>& clients)
    : plan_(plan),
      poller_(poller),
      clients_(clients),
      workload_(make_workload(plan)),
      exchange_(plan.echo),
      watch_(plan.clients * 2 * (plan.rounds + plan.gets)) {
  for (std::size_t index = 0; index < clients_.size(); ++index) {
    if (clients_[index].fd() < 0) {
      throw LoadError(plan.workload + ": connection " + std::to_string(index) + " is not there");
    }
  }
}

Figures Running::run(double limit_s) {
  for (std::size_t index = 0; index < clients_.size(); ++index) {
    guarded(index, [&] { advance(index); });
    advance_released();
  }
  const bool all = poller_.poll(
      limit_s,
      [this](std::size_t index, std::uint32_t events) {
        guarded(index, [&] { on_ready(index, events); });
        advance_released();
      },
      [this] { return done_ == clients_.size(); });
  if (!all) {
    out_of_time(limit_s);
  }
  return watch_.stop();
}

void Running::on_ready(std::size_t index, std::uint32_t events) {
  Client& client = clients_[index];
  client.flush();
  if (!client.receive(events)) {
    return;
  }
  if (client.timed()) {
    watch_.sample(client.sent_ns());
  }
  if (const std::optional<std::int64_t> number = client.number()) {
    workload_->number(index, *number);
  }
  advance(index);
}

void Running::advance(std::size_t index) {
  for (;;) {
    const Next next = workload_->next(index, exchange_);
    if (next != Next::kSend) {
      done_ += next == Next::kDone ? 1 : 0;
      return;
    }
    clients_[index].send(exchange_);
    watch_.count(exchange_.requests());
    if (exchange_.reply().size() > 0) {
      return;
    }
  }
}

void Running::advance_released() {
  std::vector<std::size_t>& released = workload_->released();
  while (!released.empty()) {
    const std::size_t index = released.back();
    released.pop_back();
    guarded(index, [&] { advance(index); });
  }
}

template <typename Action>
void Running::guarded(std::size_t index, Action action) {
  const auto named = [&](const LoadError& error) {
    return plan_.workload + ": connection " + std::to_string(index) + ": " + error.what();
  };
  try {
    action();
  } catch (const ConnectionLost& error) {
    throw ConnectionLost(named(error));
  } catch (const LoadError& error) {
    throw LoadError(named(error));
  }
}

void Running::out_of_time(double limit_s) const {
  std::string text = plan_.workload + ": " + std::to_string(clients_.size() - done_) + " of " +
                     std::to_string(clients_.size()) + " clients were not done within " + seconds_text(limit_s);
  for (std::size_t index = 0; index < clients_.size(); ++index) {
    if (clients_[index].waiting()) {
      text += "; connection " + std::to_string(index) + " waits for the reply to ";
      text += clients_[index].awaited();
      break;
    }
  }
  throw TimeLimit(text);
}

}  // namespace rdzv::load
