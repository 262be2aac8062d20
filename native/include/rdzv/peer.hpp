// Who is at the other end of a connection. Never looked up in the DNS.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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

// Whose the other end of a TCP connection within this machine is, as the kernel's table of sockets has it.
// The user who has made the socket that is connected to `fd`; nothing if there is none on this machine
// (any more), also when its process has closed it: older kernels then show it as root's.
// One question to the kernel, however many sockets there are; where it does not take that (no sock_diag), the tables in
// /proc are read, whose length is that of all sockets.
std::optional<uid_t> peer_owner(int fd);

// The connections of a server that have not sent a valid first request, in the order in which they came. Thread-safe.
//
// Whoever connects says something at once, unless it is there to use up what others need. So when there are too many,
// of one address or in all, the one that has been silent for longest makes room: a flood of them costs whoever comes
// nothing, and no address has to be known.
class Connection;
class EventLoop;

class PendingConnections {
 public:
  using Address = std::array<unsigned char, 16>;

  struct Ticket {
    Ticket(EventLoop& of_loop, Connection& of_connection, const Address& from)
        : loop(of_loop), connection(&of_connection), address(from) {}
    EventLoop& loop;
    Connection* connection;  // of the loop's thread; null when it has gone, or is not pending any more
    const Address address;

   private:
    friend PendingConnections;
    bool listed = false;
    std::list<std::shared_ptr<Ticket>>::iterator in_all;
    std::list<Ticket*>::iterator in_address;
  };

  PendingConnections(std::size_t most, std::size_t most_per_address)
      : most_(most), most_per_address_(most_per_address) {}

  // Notes one that has come. Not null: the one that has to make room, which is not counted any more; its loop closes it.
  std::shared_ptr<Ticket> enter(const std::shared_ptr<Ticket>& ticket);
  // It has greeted, or gone. Again does no harm.
  void leave(Ticket& ticket);

  std::size_t count();
  std::size_t most() const { return most_; }
  std::size_t most_per_address() const { return most_per_address_; }

 private:
  void erase(Ticket& ticket);  // with the lock

  const std::size_t most_, most_per_address_;
  std::mutex mutex_;
  std::list<std::shared_ptr<Ticket>> all_;
  std::map<Address, std::list<Ticket*>> by_address_;
};

}  // namespace rdzv
