// Where clients of a load go: a server's address, and the network from which they dial it.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <string>
#include <vector>

namespace rdzv::load {

struct Place {
  sockaddr_storage address{};
  socklen_t size = 0;
  int network = -1;  // descriptor of a network namespace; -1: where the process is. Not owned
};

// "127.0.0.1:29500", "unix:/a/path", or "unix:@name" for an abstract one. Throws LoadError.
Place parse_place(const std::string& text, int network);

// Of `clients` in order, as many to each place: neighbours share one, as the ranks of a node do.
const Place& place_of(const std::vector<Place>& places, std::size_t client, std::size_t clients);

// Takes the calling thread into other networks, and back at its end: a socket belongs to the network in which it is
// made. Needs CAP_SYS_ADMIN where a place has a network.
class Networks {
 public:
  Networks() = default;
  ~Networks();
  Networks(const Networks&) = delete;
  Networks& operator=(const Networks&) = delete;

  // Throws LoadError.
  void enter(int network);

 private:
  int home_ = -1;  // descriptor, once it has been left
  int now_ = -1;
};

}  // namespace rdzv::load
