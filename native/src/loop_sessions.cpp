// Sessions and trunks that fall silent, on their event loop.
#include <algorithm>

#include "rdzv/event_loop.hpp"

namespace rdzv {

void EventLoop::note_session(Connection& connection) {
  Lease& lease = *connection.lease();
  if (lease.listed_ms < 0) {
    lease.listed_ms = connection.lease_ends_ms();
    sessions_.emplace(lease.listed_ms, &connection);
  }
}

void EventLoop::forget_session(Connection& connection) {
  if (const Lease* const lease = connection.lease(); lease != nullptr && lease->listed_ms >= 0) {
    sessions_.erase({lease->listed_ms, &connection});
  }
}

void EventLoop::expire_sessions() {
  // Whoever was heard meanwhile is put where it belongs now: a keep-alive itself has changed nothing here.
  while (!sessions_.empty() && sessions_.begin()->first <= work_.around.now_ms) {
    Connection& connection = *sessions_.begin()->second;
    if (connection.lease_ends_ms() <= work_.around.now_ms && connection.reads()) {
      step(connection, EPOLLIN);  // what has come and was not read yet, because this loop was late, counts
    }
    if (connection.loop.closed) {
      continue;
    }
    if (connection.lease_ends_ms() <= work_.around.now_ms) {
      close(connection, connection.is_trunk() ? Refusal::kTrunkSilent : Refusal::kSessionExpired);
      continue;
    }
    forget_session(connection);
    connection.lease()->listed_ms = -1;
    note_session(connection);
  }
}

void EventLoop::end_trunk(Connection& connection) {
  if (const auto trunk = connection.end_trunk()) {
    leaving_.emplace(std::max(trunk->held_until_ms(), work_.around.now_ms), trunk);
    leaving_.emplace(work_.around.now_ms + trunk->traits().grace_ms, trunk);
  }
}

void EventLoop::expire_trunks() {
  while (!leaving_.empty() && leaving_.begin()->first <= work_.around.now_ms) {
    const auto trunk = leaving_.begin()->second;
    leaving_.erase(leaving_.begin());
    // its proxy may have come back since, and have left again: then another entry is about that
    const auto keys = trunk->expire(work_.around.now_ms, work_.around.wakes);
    for (const std::string& key : keys) {
      if (relay_) {
        relay_->unwant(key);
      }
    }
  }
}

}  // namespace rdzv
