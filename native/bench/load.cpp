#include "load.hpp"

#include <arpa/inet.h>

#include <cstring>
#include <utility>

#include "connecting.hpp"
#include "errors.hpp"
#include "running.hpp"

namespace rdzv::load {

in_addr parse_address(const std::string& text) {
  in_addr parsed{};
  if (::inet_pton(AF_INET, text.c_str(), &parsed) != 1) {
    throw LoadError("not an IPv4 address: " + text);
  }
  return parsed;
}

std::string seconds_text(double seconds) {
  const std::string text = std::to_string(seconds);
  return text.substr(0, text.find('.') + 2) + " s";
}

Load::Load(const std::string& host, std::uint16_t port, bool echo, std::function<void()> check)
    : echo_(echo), poller_(std::move(check)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr = parse_address(host);
  std::memcpy(&server_.address, &address, sizeof address);
  server_.size = sizeof address;
}

Figures Load::connect(const ConnectPlan& plan) {
  if (!clients_.empty()) {
    throw LoadError("connect: the clients are connected already");
  }
  clients_.resize(plan.count);
  return Connecting(plan, server_, echo_, poller_, clients_).run();
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
