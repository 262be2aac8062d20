#include "place.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>
#include <exception>
#include <string_view>

#include "errors.hpp"
#include "load.hpp"

namespace rdzv::load {

namespace {

constexpr std::string_view kUnix = "unix:";

Place unix_place(const std::string& path) {
  Place place;
  sockaddr_un address{};
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    throw LoadError("not a path of a Unix socket: '" + path + "'");
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const bool abstract = path.front() == '@';
  if (abstract) {
    address.sun_path[0] = '\0';
  }
  std::memcpy(&place.address, &address, sizeof address);
  place.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (abstract ? 0 : 1));
  return place;
}

Place tcp_place(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  unsigned long port = 0;
  try {
    port = colon == std::string::npos ? 0 : std::stoul(text.substr(colon + 1));
  } catch (const std::exception&) {
    port = 0;
  }
  if (port == 0 || port > 65535) {
    throw LoadError("not an address and a port: '" + text + "'");
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr = parse_address(text.substr(0, colon));
  Place place;
  std::memcpy(&place.address, &address, sizeof address);
  place.size = sizeof address;
  return place;
}

}  // namespace

Place parse_place(const std::string& text) {
  return text.starts_with(kUnix) ? unix_place(text.substr(kUnix.size())) : tcp_place(text);
}

const Place& place_of(const std::vector<Place>& places, std::size_t client, std::size_t clients) {
  return places[client * places.size() / clients];
}

}  // namespace rdzv::load
