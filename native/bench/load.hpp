// Many clients of a server, driven by the calling thread, and what they do: one small program per client, which owns no
// sockets. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client.hpp"
#include "rdzv/unique_fd.hpp"

namespace rdzv::load {

inline constexpr std::size_t kPeers = 8;  // of "mesh": whose blobs each client gets

enum class Next {
  kSend,    // the exchange has been filled in
  kParked,  // nothing to do until `released` names this client
  kDone,
};

struct Plan {
  std::string workload;
  std::string prefix;       // of every key: fresh keys for every run
  std::size_t rounds = 10;  // how often each client repeats the workload
  std::size_t clients = 0;
  bool echo = false;
};

class Workload {
 public:
  explicit Workload(const Plan& plan) : plan_(plan), steps_(plan.clients) {}
  virtual ~Workload() = default;

  // What `client` does after its last reply (or after a request that brings none).
  virtual Next next(std::size_t client, Exchange& exchange) = 0;
  // The number that a reply held, before `next` is asked; 0 from an echo.
  virtual void number(std::size_t /*client*/, std::int64_t /*value*/) {}

  // A parked client that may go on, once.
  std::optional<std::size_t> released() { return std::exchange(released_, std::nullopt); }

 protected:
  const Plan plan_;
  std::vector<std::size_t> steps_;  // how far each client has come
  std::optional<std::size_t> released_;
};

// "barrier", "mesh", "one_key", "fill", "multi_get"; of a job's start "gloo" and "store_barrier". Throws
// std::invalid_argument for another name.
std::unique_ptr<Workload> make_workload(const Plan& plan);

// What one phase of the load took.
struct Figures {
  double seconds = 0;
  std::uint64_t requests = 0;  // also those that bring no reply
  std::uint64_t timed = 0;     // round trips that the percentiles are of
  double p50_us = 0;
  double p99_us = 0;
  std::map<std::string, std::size_t> failures;  // connections that failed, by reason
};

// One epoll, and a loop around it with a time limit.
class Poller {
 public:
  // `check` is called about ten times a second while `poll` runs, and may throw to end it. Throws LoadError.
  explicit Poller(std::function<void()> check);

  // Both directions, edge-triggered; `id` comes back with every event. Throws LoadError.
  void add(int fd, std::size_t id);
  // Hands events to `on_ready(id, events)` until `finished()`; false: the limit came first.
  bool poll(double limit_s, const std::function<void(std::size_t, std::uint32_t)>& on_ready,
            const std::function<bool()>& finished);

 private:
  const std::function<void()> check_;
  const UniqueFd epoll_;
};

class Load {
 public:
  // `places`: where the clients go, as many to each: neighbours share one, as the ranks of a node do. `echo`: these
  // are bare echoes. See Poller for `check`. Throws LoadError when a place or epoll is not usable.
  Load(const std::vector<std::string>& places, bool echo, std::function<void()> check);

  // Connects clients, each until its PING is answered; the latencies are those from `connect` to there. Once only.
  // In a storm all at once, where a connection that fails is counted (figures.failures) and closed.
  // Throws LoadError; ConnectionLost and TimeLimit, but not in a storm.
  Figures connect(std::size_t count, bool storm, double limit_s);
  // Goes through a workload. `plan.clients` and `plan.echo` are filled in here. Every client must be connected.
  // Throws LoadError (naming workload, connection, expected and got), ConnectionLost, TimeLimit.
  Figures run(Plan plan, double limit_s);
  // Watches the connections without using them. Throws ConnectionLost if one is closed.
  void idle(double seconds);
  // Resets all connections.
  void close() { clients_.clear(); }

 private:
  std::vector<Place> places_;
  const bool echo_;
  Poller poller_;
  std::vector<Client> clients_;
};

// What stands at the other end of a load: the floor of the comparison, and a way to a server that takes time.

// Serves connections of the listening socket `listener` until the process ends: a bare epoll loop that answers messages
// of given sizes and does nothing else. A message starts with two u32: its whole length and the length of the reply
// that it asks for (0: none). Once a message is complete, that many zero bytes are sent. One thread, level-triggered,
// one recv for each readiness, one send for each reply. Throws LoadError when epoll fails.
[[noreturn]] void serve_echo(int listener);

// Accepts on the listening socket `listener` and passes everything on to `place` (see parse_place) after `delay_s`, and
// what comes back as well, any amount of it; ends of connections take the same time, coming about takes none. Until the
// process ends, on the calling thread. Throws LoadError.
[[noreturn]] void serve_delayed(int listener, const std::string& place, double delay_s);

}  // namespace rdzv::load
