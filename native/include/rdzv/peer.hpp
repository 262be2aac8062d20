// Who is at the other end of a connection. Never looked up in the DNS.
#pragma once

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace rdzv {

struct Peer {
  Peer() = default;
  Peer(const Peer& other) : address(other.address), port(other.port), pid(other.pid.load()), local(other.local) {}
  Peer& operator=(const Peer& other) {
    address = other.address;
    port = other.port;
    pid.store(other.pid.load());
    local = other.local;
    return *this;
  }

  std::array<unsigned char, 16> address{};  // IPv4 as an IPv4-mapped IPv6 address
  std::uint16_t port = 0;
  // torch's client sends its process id as the nonce of its PING; 0 before. Any thread may read it.
  std::atomic<std::uint32_t> pid{0};

  // By a Unix socket.
  bool local = false;

  bool is_loopback() const;
  // "10.0.0.7", "fe80::1"
  std::string host() const;
  // "10.0.0.7:40122", "[fe80::1]:40122"
  std::string endpoint() const;
};

Peer peer_of(const sockaddr_storage& address);

}  // namespace rdzv
