// Who is at the other end of a connection. Never looked up in the DNS.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace rdzv {

struct Peer {
  std::array<unsigned char, 16> address{};  // IPv4 as an IPv4-mapped IPv6 address
  std::uint16_t port = 0;
  // torch's client sends its process id as the nonce of its PING; 0 before. Any thread may read it.
  std::atomic<std::uint32_t> pid{0};

  // "10.0.0.7", "fe80::1"
  std::string host() const;
  // "10.0.0.7:40122", "[fe80::1]:40122"
  std::string endpoint() const;
};

}  // namespace rdzv
