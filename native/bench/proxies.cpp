#include "proxies.hpp"

#include <optional>
#include <utility>

#include "errors.hpp"
#include "load.hpp"

namespace rdzv::load {

Proxies::Proxies(std::vector<Place> roots, std::size_t count, std::size_t workers, std::function<void()> check)
    : roots_(std::move(roots)), workers_(workers), check_(std::move(check)), poller_([this] { tick(); }) {
  if (roots_.empty() || count == 0 || workers == 0) {
    throw LoadError("there are no roots, no proxies or no workers");
  }
  proxies_.resize(count);
}

Figures Proxies::attach(std::size_t window, const std::vector<std::string>& sources, double limit_s) {
  Networks networks;
  Stopwatch watch(proxies_.size());
  std::size_t next = 0;
  const auto dial = [&] {
    const std::size_t index = next++;
    guarded("attach", index, [&](Proxy& proxy) {
      if (proxy.fd() >= 0) {
        throw LoadError("it is attached already");
      }
      const Place& root = place_of(roots_, index, proxies_.size());
      std::optional<in_addr> source;
      if (!sources.empty()) {
        source = parse_address(sources[index % sources.size()]);
      }
      networks.enter(root.network);
      proxy.connect(root, source, "node-" + std::to_string(index));
      poller_.add(proxy.fd(), index);
    });
    watch.count(1);
  };
  while (next < proxies_.size() && next < window) {
    dial();
  }
  drive("attach", limit_s, [&](std::size_t index) {
    watch.sample(proxies_[index].asked_ns());
    ++done_;
    if (next < proxies_.size()) {
      dial();
    }
  });
  return watch.stop();
}

Figures Proxies::add(std::string_view key, double limit_s) {
  Stopwatch watch(proxies_.size());
  std::vector<bool> seen(proxies_.size());
  const auto each = static_cast<std::int64_t>(workers_);
  for (std::size_t index = 0; index < proxies_.size(); ++index) {
    guarded("add", index, [&](Proxy& proxy) { proxy.add(key, each); });
    watch.count(1);
  }
  drive("add", limit_s, [&](std::size_t index) {
    watch.sample(proxies_[index].asked_ns());
    guarded("add", index, [&](Proxy& proxy) {
      const std::string got = "reply to add: " + std::to_string(proxy.number());
      if (proxy.number() < each || proxy.number() > world() || proxy.number() % each != 0) {
        throw LoadError(got + ", which is no multiple of " + std::to_string(each) + " within " +
                        std::to_string(world()));
      }
      const auto place = static_cast<std::size_t>(proxy.number() / each - 1);
      if (seen[place]) {
        throw LoadError(got + ", which another proxy has got already");
      }
      seen[place] = true;
    });
    ++done_;
  });
  return watch.stop();
}

Figures Proxies::barrier(std::string_view key, std::size_t rounds, double limit_s) {
  if (rounds == 0) {
    throw LoadError("barrier: not even once");
  }
  Stopwatch watch(0);
  std::vector<std::size_t> entered(proxies_.size());  // barriers, by each proxy
  std::vector<std::size_t> arrived(rounds);           // proxies, at each barrier
  const auto name = [&](std::size_t round) { return std::string(key) + "/" + std::to_string(round); };
  const auto enter = [&](std::size_t index) {
    const std::size_t round = entered[index]++;
    ++arrived[round];
    guarded("barrier", index, [&](Proxy& proxy) {
      proxy.arrive(name(round), world(), static_cast<std::int64_t>(workers_));
    });
    watch.count(1);
  };
  for (std::size_t index = 0; index < proxies_.size(); ++index) {
    enter(index);
  }
  drive("barrier", limit_s, [&](std::size_t index) {
    const std::size_t round = entered[index] - 1;
    if (arrived[round] < proxies_.size()) {
      throw LoadError("barrier: proxy " + std::to_string(index) + ": came out of barrier " + std::to_string(round) +
                      ", at which only " + std::to_string(arrived[round]) + " of " + std::to_string(proxies_.size()) +
                      " proxies have arrived");
    }
    if (entered[index] < rounds) {
      enter(index);
    } else {
      ++done_;
    }
  });
  const Figures figures = watch.stop();
  for (std::size_t round = 0; round < rounds; ++round) {
    expect_count(name(round), limit_s);
  }
  return figures;
}

void Proxies::expect_count(const std::string& key, double limit_s) {
  guarded("barrier", 0, [&](Proxy& proxy) { proxy.add(key, 0); });
  done_ = proxies_.size() - 1;
  drive("barrier", limit_s, [&](std::size_t index) {
    if (proxies_[index].number() != world()) {
      throw LoadError("barrier: '" + key + "' has counted " + std::to_string(proxies_[index].number()) + " of " +
                      std::to_string(world()) + " workers");
    }
    ++done_;
  });
}

void Proxies::close() {
  for (Proxy& proxy : proxies_) {
    proxy.close();
  }
}

void Proxies::drive(std::string_view phase, double limit_s, const std::function<void(std::size_t)>& on_answer) {
  const bool all = poller_.poll(
      limit_s,
      [&](std::size_t index, std::uint32_t events) {
        bool answered = false;
        guarded(phase, index, [&](Proxy& proxy) { answered = proxy.on_ready(events); });
        if (answered) {
          on_answer(index);
        }
      },
      [this] { return done_ == proxies_.size(); });
  const std::size_t missing = proxies_.size() - done_;
  done_ = 0;
  if (!all) {
    throw TimeLimit(std::string(phase) + ": " + std::to_string(missing) + " of " + std::to_string(proxies_.size()) +
                    " proxies had no answer within " + seconds_text(limit_s));
  }
}

template <typename Action>
void Proxies::guarded(std::string_view phase, std::size_t index, Action action) {
  const auto named = [&](const LoadError& error) {
    return std::string(phase) + ": proxy " + std::to_string(index) + ": " + error.what();
  };
  try {
    action(proxies_[index]);
  } catch (const ConnectionLost& error) {
    throw ConnectionLost(named(error));
  } catch (const LoadError& error) {
    throw LoadError(named(error));
  }
}

// About ten times a second.
void Proxies::tick() {
  check_();
  for (std::size_t index = 0; index < proxies_.size(); ++index) {
    guarded("sign of life", index, [](Proxy& proxy) { proxy.keep_alive(); });
  }
}

}  // namespace rdzv::load
