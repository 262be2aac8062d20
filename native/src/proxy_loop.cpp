// What the event loop of a proxy does besides.
#include "rdzv/event_loop.hpp"

namespace rdzv {

void EventLoop::become_proxy(Upstream& upstream, const std::shared_ptr<ServedKeyspace>& keys) {
  relay_ = std::make_unique<Relay>(static_cast<Host&>(*this), work_.context, keys, upstream);
  upstream_ = &upstream;
  work_.context.relay = relay_.get();
  upstream.start(*relay_, epoll_.get(), work_.context.now_ms);
}

void EventLoop::answer(void* connection, std::string_view raw) {
  auto& client = *static_cast<Connection*>(connection);
  if (!client.loop.closed && client.refusal() == Refusal::kNone) {
    client.answered(raw);
    mark_dirty(client);
  }
}

void EventLoop::go_on(void* connection) {
  auto& client = *static_cast<Connection*>(connection);
  if (!client.loop.closed) {
    client.go_on();
    mark_dirty(client);
  }
}

void EventLoop::refuse(void* connection, Refusal why) {
  auto& client = *static_cast<Connection*>(connection);
  if (!client.loop.closed) {
    client.refuse(why);
    mark_dirty(client);
  }
}

void EventLoop::close_all(const std::string& why) {
  for (const auto& client : connections_here_) {
    refuse(client.get(), Refusal::kRootLost);  // closed at the end of the turn: one of them may be being served
  }
  loop_group_.log.always("lost: " + why);
}

std::unordered_set<std::uint64_t> EventLoop::cut_trunks() {
  std::unordered_set<std::uint64_t> cut;
  for (const auto& client : connections_here_) {
    if (client->is_trunk() && client->refusal() == Refusal::kNone) {
      cut.insert(client->token());
      refuse(client.get(), Refusal::kTrunkSilent);
    }
  }
  return cut;
}

void EventLoop::finish_turn() {
  std::uint64_t requests = 0;
  for (const Count& count : counters_.requests) {
    requests += count.get();
  }
  do {
    send_dirty();
    graveyard_.clear();  // with what they have waited for
    relay_->end_turn();
    upstream_->end_turn(work_.context.now_ms, requests);
  } while (!dirty_.empty() || !work_.wakes.empty() || !work_.context.wakes.empty() || !work_.context.pushes.empty());
}

}  // namespace rdzv
