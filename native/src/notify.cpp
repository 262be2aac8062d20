// What an event loop tells those who wait or watch: what was done for others.
#include <iterator>

#include "rdzv/event_loop.hpp"

namespace rdzv {

void EventLoop::deliver() {
  auto& late = work_.context.wakes;
  work_.wakes.insert(work_.wakes.end(), std::make_move_iterator(late.begin()), std::make_move_iterator(late.end()));
  late.clear();
  // what a trunk is told of a wake is a push to its connection
  tell_trunks(work_.wakes, work_.context.pushes);
  deliver_pushes();
  if (work_.wakes.empty()) {
    return;
  }
  counters_.wakes.add(work_.wakes.size());
  for (auto& waiter : work_.wakes) {
    if (relay_ && waiter->writes) {
      relay_->given_up(*waiter);
    } else if (waiter->loop == index_) {
      told(*waiter);
    } else {
      outgoing_[waiter->loop].push_back(std::move(waiter));
    }
  }
  work_.wakes.clear();
  for (std::size_t loop = 0; loop < outgoing_.size(); ++loop) {
    if (!outgoing_[loop].empty()) {
      loop_group_.loops[loop]->mailbox().post(std::move(outgoing_[loop]));
    }
  }
}

void EventLoop::send_dirty() {
  deliver();
  while (!dirty_.empty()) {
    std::vector<Connection*> now;
    now.swap(dirty_);
    for (Connection* connection : now) {
      connection->loop.dirty = false;
      step(*connection, EPOLLOUT);  // which may set keys in its turn, if requests had to wait for these replies
    }
    deliver();
  }
}

void EventLoop::told(const Waiter& waiter) {
  auto* const connection = static_cast<Connection*>(waiter.owner);
  if (connection != nullptr && !connection->loop.closed && connection->woken(waiter)) {
    mark_dirty(*connection);
  }
}

void EventLoop::mark_dirty(Connection& connection) {
  if (!connection.loop.dirty) {
    connection.loop.dirty = true;
    dirty_.push_back(&connection);
  }
}

void EventLoop::told(const Subscriber& subscriber) {
  auto* const connection = static_cast<Connection*>(subscriber.owner);
  if (connection != nullptr && !connection->loop.closed && connection->pushed()) {
    mark_dirty(*connection);
  }
}

void EventLoop::deliver_pushes() {
  auto& pushes = work_.context.pushes;
  if (pushes.empty()) {
    return;
  }
  for (auto& subscriber : pushes) {
    if (subscriber->loop == index_) {
      told(*subscriber);
    } else {
      outgoing_pushes_[subscriber->loop].push_back(std::move(subscriber));
    }
  }
  pushes.clear();
  for (std::size_t loop = 0; loop < outgoing_pushes_.size(); ++loop) {
    if (!outgoing_pushes_[loop].empty()) {
      loop_group_.loops[loop]->mailbox().post(std::move(outgoing_pushes_[loop]));
    }
  }
}

}  // namespace rdzv
