#include "load.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

namespace rdzv::load {

namespace {

constexpr std::uint64_t kCheckEveryNs = 100'000'000;
constexpr std::size_t kWindow = 256;  // connections under way at a time, but in a storm

// "1.5 s"
std::string seconds_text(double seconds) {
  const std::string text = std::to_string(seconds);
  return text.substr(0, text.find('.') + 2) + " s";
}

// Collects while a phase runs. Its time begins when it is made.
class Stopwatch {
 public:
  explicit Stopwatch(std::size_t round_trips) { latencies_ns_.reserve(round_trips); }

  void count(std::uint64_t requests) { requests_ += requests; }
  void sample(std::uint64_t since_ns) { latencies_ns_.push_back(now_ns() - since_ns); }

  Figures stop() {
    const double seconds = static_cast<double>(now_ns() - began_ns_) / 1e9;
    return {seconds, requests_, latencies_ns_.size(), percentile_us(50), percentile_us(99), {}};
  }

 private:
  double percentile_us(std::size_t percent) {
    if (latencies_ns_.empty()) {
      return 0;
    }
    const auto at = latencies_ns_.begin() + static_cast<std::ptrdiff_t>((latencies_ns_.size() - 1) * percent / 100);
    std::nth_element(latencies_ns_.begin(), at, latencies_ns_.end());
    return static_cast<double>(*at) / 1e3;
  }

  std::vector<std::uint64_t> latencies_ns_;
  std::uint64_t requests_ = 0;
  const std::uint64_t began_ns_ = now_ns();
};

// The phase in which the clients connect.
class Connecting {
 public:
  Connecting(const std::vector<Place>& places, bool echo, bool storm, Poller& poller, std::vector<Client>& clients)
      : places_(places),
        storm_(storm),
        poller_(poller),
        clients_(clients),
        exchange_(echo),
        states_(clients.size()),
        began_ns_(clients.size()) {}

  Figures run(double limit_s) {
    for (std::size_t index = 0; index < clients_.size(); ++index) {
      // before the clock starts: what a machine does to have so many sockets is not what its server does with them
      clients_[index].open(place(index));
    }
    watch_.emplace(clients_.size());
    fill_window();
    const bool all = poller_.poll(
        limit_s,
        [this](std::size_t index, std::uint32_t events) {
          guarded(index, [&] { on_ready(index, events); });
          fill_window();
        },
        [this] { return ended_ == clients_.size(); });
    Figures figures = watch_->stop();
    if (!all) {
      abandon(limit_s);
    }
    figures.failures = std::move(failures_);
    return figures;
  }

 private:
  enum class State : char { kNew, kConnecting, kPinging, kReady, kFailed };

  const Place& place(std::size_t index) const { return places_[index * places_.size() / clients_.size()]; }

  void fill_window() {
    while (next_ < clients_.size() && (storm_ || next_ - ended_ < kWindow)) {
      const std::size_t index = next_++;
      guarded(index, [&] {
        began_ns_[index] = now_ns();
        states_[index] = State::kConnecting;
        clients_[index].connect(place(index));
        poller_.add(clients_[index].fd(), index);
      });
    }
  }

  void on_ready(std::size_t index, std::uint32_t events) {
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
  void guarded(std::size_t index, Action action) {
    if (states_[index] == State::kFailed) {
      return;  // an event that was under way
    }
    try {
      action();
    } catch (const ConnectionLost& error) {
      if (!storm_) {
        throw ConnectionLost("connect: connection " + std::to_string(index) + " of " +
                             std::to_string(clients_.size()) + ": " + error.what());
      }
      ended_ += states_[index] == State::kReady ? 0 : 1;
      ++failures_[error.what()];
      states_[index] = State::kFailed;
      clients_[index].close();
    } catch (const LoadError& error) {
      throw LoadError("connect: connection " + std::to_string(index) + ": " + error.what());
    }
  }

  void abandon(double limit_s) {  // what is not connected when the limit comes
    const std::size_t missing = clients_.size() - ended_;
    const std::string text = "no answer to ping within " + seconds_text(limit_s);
    if (!storm_) {
      throw TimeLimit("connect: " + std::to_string(missing) + " of " + std::to_string(clients_.size()) +
                      " clients had " + text);
    }
    failures_[text] += missing;
    for (std::size_t index = 0; index < clients_.size(); ++index) {
      if (states_[index] != State::kReady) {
        clients_[index].close();
      }
    }
  }

  const std::vector<Place>& places_;
  const bool storm_;
  Poller& poller_;
  std::vector<Client>& clients_;
  Exchange exchange_;
  std::vector<State> states_;
  std::vector<std::uint64_t> began_ns_;
  std::size_t next_ = 0;   // client to connect
  std::size_t ended_ = 0;  // ready or failed
  std::map<std::string, std::size_t> failures_;
  std::optional<Stopwatch> watch_;
};

// The phase in which connected clients go through a workload.
class Running {
 public:
  Running(const Plan& plan, Poller& poller, std::vector<Client>& clients)
      : plan_(plan),
        poller_(poller),
        clients_(clients),
        workload_(make_workload(plan)),
        exchange_(plan.echo),
        watch_(plan.clients * 2 * (plan.rounds + kPeers)) {
    for (std::size_t index = 0; index < clients_.size(); ++index) {
      if (clients_[index].fd() < 0) {
        throw LoadError(plan.workload + ": connection " + std::to_string(index) + " is not there");
      }
    }
  }

  Figures run(double limit_s) {
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

 private:
  void on_ready(std::size_t index, std::uint32_t events) {
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

  // Sends until a reply is to be waited for.
  void advance(std::size_t index) {
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

  void advance_released() {
    while (const std::optional<std::size_t> index = workload_->released()) {
      guarded(*index, [&] { advance(*index); });
    }
  }

  template <typename Action>
  void guarded(std::size_t index, Action action) {
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

  [[noreturn]] void out_of_time(double limit_s) const {
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

  const Plan& plan_;
  Poller& poller_;
  std::vector<Client>& clients_;
  const std::unique_ptr<Workload> workload_;
  Exchange exchange_;
  std::size_t done_ = 0;
  Stopwatch watch_;
};

}  // namespace

Poller::Poller(std::function<void()> check) : check_(std::move(check)), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) {
    fail("epoll_create1");
  }
}

void Poller::add(int fd, std::size_t id) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    fail("epoll_ctl");
  }
}

bool Poller::poll(double limit_s, const std::function<void(std::size_t, std::uint32_t)>& on_ready,
                  const std::function<bool()>& finished) {
  const std::uint64_t end = now_ns() + static_cast<std::uint64_t>(limit_s * 1e9);
  std::uint64_t next_check = now_ns() + kCheckEveryNs;
  std::array<epoll_event, 1024> events;
  while (!finished()) {
    const std::uint64_t now = now_ns();
    if (now >= end) {
      return false;
    }
    if (now >= next_check) {
      check_();
      next_check = now + kCheckEveryNs;
    }
    const std::uint64_t wait_ms = std::min(end - now, kCheckEveryNs) / 1'000'000 + 1;
    const int ready = ::epoll_wait(epoll_.get(), events.data(), events.size(), static_cast<int>(wait_ms));
    if (ready < 0 && errno != EINTR) {
      fail("epoll_wait");
    }
    for (int i = 0; i < ready; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      on_ready(static_cast<std::size_t>(event.data.u64), event.events);
    }
  }
  return true;
}

Load::Load(const std::vector<std::string>& places, bool echo, std::function<void()> check)
    : echo_(echo), poller_(std::move(check)) {
  for (const std::string& place : places) {
    places_.push_back(parse_place(place));
  }
}

Figures Load::connect(std::size_t count, bool storm, double limit_s) {
  if (!clients_.empty()) {
    throw LoadError("connect: the clients are connected already");
  }
  clients_ = std::vector<Client>(count);
  return Connecting(places_, echo_, storm, poller_, clients_).run(limit_s);
}

Figures Load::run(Plan plan, double limit_s) {
  plan.clients = clients_.size();
  plan.echo = echo_;
  return Running(plan, poller_, clients_).run(limit_s);
}

void Load::idle(double seconds) {
  const auto on_ready = [this](std::size_t index, std::uint32_t events) {
    try {
      clients_[index].receive(events);
    } catch (const ConnectionLost& error) {
      throw ConnectionLost("idle: connection " + std::to_string(index) + ": " + error.what());
    }
  };
  poller_.poll(seconds, on_ready, [] { return false; });
}

}  // namespace rdzv::load
