// Conversations without sockets: what each client says and hears, wakes included.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "rdzv/conversation.hpp"

namespace rdzv::test {

class FakeServer : public ServerAccess {
 public:
  static constexpr std::string_view kStatistics = R"({"fake": true})";

  std::string statistics() override {
    ++asked;
    return std::string(kStatistics);
  }
  std::shared_ptr<ServedKeyspace> keyspace(std::string_view name) override { return name == "other" ? other : nullptr; }

  Spaces& spaces() override { return *runs; }
  std::shared_ptr<const Tokens> tokens() override { return accepted; }
  void bind(std::string run) { runs = std::make_unique<Spaces>(std::move(run)); }

  std::unique_ptr<Spaces> runs = std::make_unique<Spaces>();
  std::shared_ptr<ServedKeyspace> other = std::make_shared<ServedKeyspace>("other");
  std::shared_ptr<const Tokens> accepted = std::make_shared<const Tokens>();
  int asked = 0;
};

// Everything that is there to be sent; nothing of it is left.
inline std::string drain(Output& output, std::size_t at_once = ~std::size_t{0}) {
  std::string sent;
  iovec parts[7];
  while (!output.empty()) {
    const std::size_t count = output.gather(parts, 7);
    std::size_t now = 0;
    for (std::size_t i = 0; i < count && now < at_once; ++i) {
      const std::size_t size = std::min(parts[i].iov_len, at_once - now);
      sent.append(static_cast<const char*>(parts[i].iov_base), size);
      now += size;
    }
    if (now == 0) {
      return sent + " (and nothing more, though it is not empty)";
    }
    output.consume(now);
  }
  return sent;
}

// What several conversations share: a server without sockets and threads.
struct Room {
  explicit Room(const Limits& of_all = Limits()) : limits(of_all) {}

  const Limits limits;
  Counters counters;
  FakeServer server;
  std::shared_ptr<ServedKeyspace> keyspace = std::make_shared<ServedKeyspace>("main");
  LoopContext context{limits, counters, server};
  Wakes wakes;

  // Tells everybody who was woken or whose watches have news; what they are told lies in their output.
  void deliver();
  std::uint64_t requests(Query query) const { return counters.requests[static_cast<std::size_t>(query)].get(); }
};

class Talk {
 public:
  explicit Talk(Room& room, bool guarded = false)
      : room_(room), conversation_(room.context, room.keyspace, peer_, this, guarded) {}

  // Hands over `bytes`, behind what was left over before, and runs what is complete, but delivers no wakes. Returns
  // how many bytes were used.
  std::size_t feed(std::string_view bytes, Questions questions = Questions::kNow) {
    left_ += bytes;
    const std::size_t used = conversation_.feed(left_, output_, room_.wakes, questions);
    left_.erase(0, used);
    return used;
  }
  // The same, and everybody is told.
  void say(std::string_view bytes) {
    feed(bytes);
    room_.deliver();
  }
  std::string hear() { return drain(output_); }
  std::string ask(std::string_view bytes) {
    say(bytes);
    return hear();
  }
  void told(const Waiter& waiter) { conversation_.woken(waiter, output_); }
  void pushed() { conversation_.pushed(output_); }

  const std::string& left() const { return left_; }
  Output& output() { return output_; }
  Conversation& conversation() { return conversation_; }
  Refusal refusal() const { return conversation_.refusal(); }
  Peer& peer() { return peer_; }

 private:
  Room& room_;
  Peer peer_;
  std::string left_;
  Output output_;
  Conversation conversation_;
};

inline void Room::deliver() {
  const Wakes now = std::exchange(wakes, {});
  for (const auto& waiter : now) {
    if (waiter->owner != nullptr) {
      static_cast<Talk*>(waiter->owner)->told(*waiter);
    }
  }
  for (const auto& subscriber : std::exchange(context.pushes, {})) {
    if (subscriber->owner != nullptr) {
      static_cast<Talk*>(subscriber->owner)->pushed();
    }
  }
}

}  // namespace rdzv::test
