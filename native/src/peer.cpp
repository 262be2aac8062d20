#include "rdzv/peer.hpp"

#include <arpa/inet.h>

#include <algorithm>

namespace rdzv {

std::string Peer::endpoint() const {
  static constexpr std::array<unsigned char, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  char text[INET6_ADDRSTRLEN] = "?";
  const bool v4 = std::equal(kMapped.begin(), kMapped.end(), address.begin());
  inet_ntop(v4 ? AF_INET : AF_INET6, address.data() + (v4 ? 12 : 0), text, sizeof text);
  std::string endpoint = v4 ? "" : "[";
  endpoint.append(text).append(v4 ? ":" : "]:").append(std::to_string(port));
  return endpoint;
}

}  // namespace rdzv
