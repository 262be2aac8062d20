// Sessions and trunks that fall silent, on their event loop.
#include <algorithm>

#include "rdzv/event_loop.hpp"

namespace rdzv {

namespace {

constexpr int kMostReads = 64;  // of who has to have said something, and may have said much before it

}  // namespace

void EventLoop::note_session(Connection& connection) {
  Lease& lease = *connection.lease();
  if (lease.listed_ms < 0) {
    lease.listed_ms = std::min(connection.lease_ends_ms(), recall_due_ms(connection));
    sessions_.emplace(lease.listed_ms, &connection);
  }
}

void EventLoop::forget_session(Connection& connection) {
  if (const Lease* const lease = connection.lease(); lease != nullptr && lease->listed_ms >= 0) {
    sessions_.erase({lease->listed_ms, &connection});
  }
}

std::int64_t EventLoop::recall_due_ms(const Connection& connection) const {
  const std::int64_t due_ms = connection.recall_due_ms();
  return due_ms == INT64_MAX ? due_ms : due_ms - work_.context.stalled_ms;
}

void EventLoop::note_recall(Connection& connection) {
  if (connection.is_trunk() && recall_due_ms(connection) < connection.lease()->listed_ms) {
    forget_session(connection);
    connection.lease()->listed_ms = -1;
    note_session(connection);
  }
}

void EventLoop::expire_sessions() {
  // Whoever was heard meanwhile is put where it belongs now: a keep-alive itself has changed nothing here.
  const std::int64_t now_ms = work_.context.running_ms();
  while (!sessions_.empty() && sessions_.begin()->first <= now_ms) {
    Connection& connection = *sessions_.begin()->second;
    if (connection.keyspace().pause.paused()) {
      connection.excuse(work_.context);
    }
    const auto keeps = [&] { return !connection.loop.closed && recall_due_ms(connection) <= now_ms; };
    if ((connection.lease_ends_ms() <= now_ms || keeps()) && connection.reads()) {
      step(connection, EPOLLIN);  // what has come and was not read yet, because this loop was late, counts
      for (int i = 0; i < kMostReads && keeps() && connection.reads(); ++i) {
        step(connection, EPOLLIN);
      }
    }
    if (connection.loop.closed) {
      continue;
    }
    if (keeps()) {
      connection.trunk()->distrust(work_.context.wakes);
      close(connection, Refusal::kKeepsValue);
      continue;
    }
    if (connection.lease_ends_ms() <= now_ms) {
      close(connection, connection.is_trunk() ? Refusal::kTrunkSilent : Refusal::kSessionExpired);
      continue;
    }
    forget_session(connection);
    connection.lease()->listed_ms = -1;
    note_session(connection);
  }
}

void EventLoop::end_trunk(Connection& connection) {
  if (const auto trunk = connection.end()) {
    const std::int64_t now_ms = work_.context.running_ms();
    leaving_.emplace(std::max(trunk->held_until_ms(), now_ms), trunk);
    leaving_.emplace(now_ms + trunk->traits().grace_ms, trunk);
  }
}

void EventLoop::expire_trunks() {
  const std::int64_t now_ms = work_.context.running_ms();
  while (!leaving_.empty() && leaving_.begin()->first <= now_ms) {
    const auto trunk = leaving_.begin()->second;
    leaving_.erase(leaving_.begin());
    if (trunk->keyspace().pause.paused()) {  // its proxy could not come back meanwhile
      leaving_.emplace(now_ms + trunk->traits().grace_ms, trunk);
      continue;
    }
    // its proxy may have come back since, and have left again: then another entry is about that
    const auto keys = trunk->expire(now_ms, work_.context.wakes);
    for (const std::string& key : keys) {
      if (relay_) {
        relay_->unwant(key);
      }
    }
  }
}

}  // namespace rdzv
