// Many clients of one server, driven by the calling thread. Not thread-safe.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client.hpp"
#include "figures.hpp"
#include "place.hpp"
#include "poller.hpp"
#include "workload.hpp"

namespace rdzv::load {

// An IPv4 address from its text. Throws LoadError.
in_addr parse_address(const std::string& text);
// "1.5 s"
std::string seconds_text(double seconds);

struct ConnectPlan {
  std::size_t count = 0;
  std::size_t window = 0;            // connections under way at a time
  std::vector<Place> places;         // where they go, see place_of; empty: the load's server
  std::vector<std::string> sources;  // the clients' addresses, in turn; empty: the system's choice
  bool storm = false;                // a connection that fails is counted and closed, else it ends the phase
  double limit_s = 0;
};

class Load {
 public:
  // See Poller for `check`. Throws LoadError when the address or epoll is not usable.
  Load(const std::string& host, std::uint16_t port, bool echo, std::function<void()> check);

  // Connects clients, each until its PING is answered; the latencies are those from `connect` to there. Once only.
  // Throws LoadError, ConnectionLost, TimeLimit; the last two not in a storm, where figures.failures has them.
  Figures connect(const ConnectPlan& plan);
  // `plan.clients` and `plan.echo` are filled in here. Every client must be connected.
  // Throws LoadError (naming workload, connection, expected and got), ConnectionLost, TimeLimit.
  Figures run(Plan plan, double limit_s);
  // Watches the connections without using them. Throws ConnectionLost if one is closed.
  void idle(double seconds);
  // Resets all connections.
  void close() { clients_.clear(); }

 private:
  Place server_;
  const bool echo_;
  Poller poller_;
  std::vector<Client> clients_;
};

}  // namespace rdzv::load
