// The connections of a server that have not sent a valid first request, in the order in which they came. Thread-safe.
//
// Whoever connects says something at once, unless it is there to use up what others need. So when there are too many,
// of one address or in all, the one that has been silent for longest makes room: a flood of them costs whoever comes
// nothing, and no address has to be known.
#pragma once

#include <array>
#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>

namespace rdzv {

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
