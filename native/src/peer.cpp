#include "rdzv/peer.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace rdzv {

namespace {
constexpr std::array<unsigned char, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
}

bool Peer::is_loopback() const {
  if (std::equal(kMapped.begin(), kMapped.end(), address.begin())) {
    return address[12] == 127;
  }
  return address.back() == 1 && std::all_of(address.begin(), address.end() - 1, [](auto byte) { return byte == 0; });
}

std::string Peer::host() const {
  if (local) {
    return "a Unix socket";
  }
  char text[INET6_ADDRSTRLEN] = "?";
  const bool v4 = std::equal(kMapped.begin(), kMapped.end(), address.begin());
  inet_ntop(v4 ? AF_INET : AF_INET6, address.data() + (v4 ? 12 : 0), text, sizeof text);
  return text;
}

std::string Peer::endpoint() const {
  const std::string text = host();
  if (local) {
    return text;
  }
  const bool v6 = text.find(':') != std::string::npos;
  return (v6 ? "[" + text + "]:" : text + ":") + std::to_string(port);
}

Peer peer_of(const sockaddr_storage& address) {
  Peer peer;
  if (address.ss_family == AF_UNIX) {
    peer.local = true;
  } else if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    std::memcpy(peer.address.data(), &v6.sin6_addr, 16);
    peer.port = ntohs(v6.sin6_port);
  } else {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    peer.address[10] = peer.address[11] = 0xff;
    std::memcpy(peer.address.data() + 12, &v4.sin_addr, 4);
    peer.port = ntohs(v4.sin_port);
  }
  return peer;
}

}  // namespace rdzv
