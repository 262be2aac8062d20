#include "rdzv/peer.hpp"

#include <arpa/inet.h>

#include <algorithm>

namespace rdzv {

namespace {
constexpr std::array<unsigned char, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
}

std::string Peer::host() const {
  char text[INET6_ADDRSTRLEN] = "?";
  const bool v4 = std::equal(kMapped.begin(), kMapped.end(), address.begin());
  inet_ntop(v4 ? AF_INET : AF_INET6, address.data() + (v4 ? 12 : 0), text, sizeof text);
  return text;
}

std::string Peer::endpoint() const {
  const std::string text = host();
  const bool v6 = text.find(':') != std::string::npos;
  return (v6 ? "[" + text + "]:" : text + ":") + std::to_string(port);
}

}  // namespace rdzv
