#include "rdzv/pending.hpp"

namespace rdzv {

std::shared_ptr<PendingConnections::Ticket> PendingConnections::enter(const std::shared_ptr<Ticket>& ticket) {
  const std::lock_guard lock(mutex_);
  auto& here = by_address_[ticket->address];
  ticket->in_all = all_.insert(all_.end(), ticket);
  ticket->in_address = here.insert(here.end(), ticket.get());
  ticket->listed = true;
  std::shared_ptr<Ticket> oldest;
  if (here.size() > most_per_address_) {
    oldest = *here.front()->in_all;
  } else if (all_.size() > most_) {
    oldest = all_.front();
  }
  if (oldest) {
    erase(*oldest);
  }
  return oldest;
}

void PendingConnections::leave(Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  if (ticket.listed) {
    erase(ticket);
  }
}

std::size_t PendingConnections::count() {
  const std::lock_guard lock(mutex_);
  return all_.size();
}

void PendingConnections::erase(Ticket& ticket) {
  ticket.listed = false;
  const auto here = by_address_.find(ticket.address);
  here->second.erase(ticket.in_address);
  if (here->second.empty()) {
    by_address_.erase(here);
  }
  all_.erase(ticket.in_all);  // last: it may be what keeps the ticket
}

}  // namespace rdzv
