// Where clients of a load go.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <string>
#include <vector>

namespace rdzv::load {

struct Place {
  sockaddr_storage address{};
  socklen_t size = 0;
};

// "127.0.0.1:29500", "unix:/a/path", or "unix:@name" for an abstract one. Throws LoadError.
Place parse_place(const std::string& text);

// Of `clients` in order, as many to each place: neighbours share one, as the ranks of a node do.
const Place& place_of(const std::vector<Place>& places, std::size_t client, std::size_t clients);

}  // namespace rdzv::load
