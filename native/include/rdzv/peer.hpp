// Who is at the other end of a connection. Never looked up in the DNS.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <sys/socket.h>
#include <sys/types.h>

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

// Whose the other end of a TCP connection within this machine is, as the kernel's table of sockets has it.
// The user who has made the socket that is connected to `fd`; nothing if there is none on this machine
// (any more), also when its process has closed it: older kernels then show it as root's.
// One question to the kernel, however many sockets there are; where it does not take that (no sock_diag), the tables in
// /proc are read, whose length is that of all sockets.
std::optional<uid_t> peer_owner(int fd);

}  // namespace rdzv
