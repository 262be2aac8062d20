// The phase in which the clients of a load connect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "load.hpp"

namespace rdzv::load {

class Connecting {
 public:
  Connecting(const ConnectPlan& plan, const Place& server, bool echo, Poller& poller,
             std::vector<Client>& clients);
  Figures run();

 private:
  enum class State : char { kNew, kConnecting, kPinging, kReady, kFailed };

  const Place& place(std::size_t index) const;
  void open_all();
  void fill_window();
  void connect(std::size_t index);
  void on_ready(std::size_t index, std::uint32_t events);
  template <typename Action>
  void guarded(std::size_t index, Action action);
  void abandon();  // what is not connected when the limit comes

  const ConnectPlan& plan_;
  const Place& server_;
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

}  // namespace rdzv::load
