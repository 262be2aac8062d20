// Sessions that fall silent, on their event loop.
#include "rdzv/event_loop.hpp"

namespace rdzv {

void EventLoop::note_session(Connection& connection) {
  Session& session = *connection.session();
  if (session.listed_ms < 0) {
    session.listed_ms = connection.session_ends_ms();
    sessions_.emplace(session.listed_ms, &connection);
  }
}

void EventLoop::forget_session(Connection& connection) {
  if (const Session* const session = connection.session(); session != nullptr && session->listed_ms >= 0) {
    sessions_.erase({session->listed_ms, &connection});
  }
}

void EventLoop::expire_sessions() {
  // Whoever was heard meanwhile is put where it belongs now: a keep-alive itself has changed nothing here.
  while (!sessions_.empty() && sessions_.begin()->first <= work_.around.now_ms) {
    Connection& connection = *sessions_.begin()->second;
    if (connection.session_ends_ms() <= work_.around.now_ms && connection.reads()) {
      step(connection, EPOLLIN);  // what has come and was not read yet, because this loop was late, counts
    }
    if (connection.loop.closed) {
      continue;
    }
    if (connection.session_ends_ms() <= work_.around.now_ms) {
      close(connection, Refusal::kSessionExpired);
      continue;
    }
    forget_session(connection);
    connection.session()->listed_ms = -1;
    note_session(connection);
  }
}

}  // namespace rdzv
