#include "lockstep.hpp"

#include <stdexcept>

#include "coordination.hpp"
#include "rdzv/text.hpp"
#include "requests.hpp"

namespace rdzv::test {

namespace {

void require(bool condition, const char* what) {
  if (!condition) {
    throw std::runtime_error(what);
  }
}

}  // namespace

Lockstep::Lockstep(const Limits& limits)
    : room_(limits), stores_{ReferenceStore(room_.limits), ReferenceStore(room_.limits)} {
  for (std::size_t i = 0; i < kClients; ++i) {
    connect(i);
  }
}

void Lockstep::connect(std::size_t id) {
  clients_[id] = {};
  clients_[id].talk = std::make_unique<Talk>(room_);
  stores_[0].greet(id);
}

void Lockstep::leave(std::size_t id) {
  clients_[id].talk.reset();
  stores_[clients_[id].store].leave(id);
  connect(id);
}

void Lockstep::wipe() {
  room_.keyspace->wipe();
  stores_[0].wipe();
}

void Lockstep::say(std::size_t id, std::string_view bytes) {
  Client& client = clients_[id];
  if (client.refusal != Refusal::kNone) {
    return;
  }
  if (client.phase == Phase::kGreeting && client.left.empty() && bytes.starts_with('\xF8')) {
    client.expected.bytes(std::string("RDZA\2\0\0\0", 8));  // the only answer to what is not used
  }
  client.left += bytes;
  feed(id, bytes);
  if (client.left.empty() && client.phase == Phase::kGreeting) {  // it was a trunk, and has left
    return;
  }
  // It stops early when there is much to be read, and after what takes long; never twice without a step in between.
  for (int stuck = 0; client.talk->conversation().stopped_early() && client.talk->refusal() == Refusal::kNone;
       ++stuck) {
    const std::size_t before = client.left.size();
    feed(id, "");
    stuck = client.left.size() < before ? 0 : stuck;
    require(stuck < 2, "feed() does not go on");
  }
  if (client.refusal == Refusal::kNone) {
    require(run(id, client.left) == 0, "a complete request was left over");
  }
  require(client.talk->refusal() == client.refusal, "the refusal is another one");
}

void Lockstep::feed(std::size_t id, std::string_view bytes) {
  Client& client = clients_[id];
  const std::size_t used = client.talk->feed(bytes);
  if (client.talk->conversation().is_trunk()) {  // what a proxy asks has no second implementation: it goes
    proxies_ = true;
    leave(id);
    return;
  }
  require(used <= client.left.size(), "feed() has used more than there is");
  require(used == 0 || run(id, std::string_view(client.left).substr(0, used)) == used,
          "what feed() has used is not what the reference uses");
  client.left.erase(0, used);
  require(client.talk->left() == client.left, "feed() has changed what is left over");
  room_.deliver();
  stores_[0].deliver();
  stores_[1].deliver();
  compare_replies();
}

std::size_t Lockstep::run(std::size_t id, std::string_view bytes) {
  Client& client = clients_[id];
  std::size_t used = 0;
  while (used < bytes.size() && client.refusal == Refusal::kNone) {
    const std::string_view rest = bytes.substr(used);
    const std::size_t size = client.phase == Phase::kStore    ? request(id, rest)
                             : client.phase == Phase::kFramed ? frame(id, rest)
                                                              : greet(client, rest);
    if (size == 0) {
      break;
    }
    used += size;
  }
  return used;
}

std::size_t Lockstep::greet(Client& client, std::string_view bytes) {
  if (bytes[0] == '\xF8') {  // a token is offered, and none is needed
    client.refusal = Refusal::kTokenOffered;
    return 0;
  }
  const bool framed = bytes[0] == '\xF7';
  const std::string greeting = framed ? wire::framed_greeting() : wire::greeting();
  const std::string_view there = bytes.substr(0, greeting.size());
  if (there != greeting.substr(0, there.size())) {
    client.refusal = Refusal::kNotAClient;
    return 0;
  }
  if (there.size() < greeting.size()) {
    return 0;
  }
  client.phase = framed ? Phase::kFramed : Phase::kStore;
  if (framed) {
    client.expected.bytes(wire::framed_welcome());
  } else {
    ++requests_[0];
  }
  return greeting.size();
}

std::size_t Lockstep::frame(std::size_t id, std::string_view bytes) {
  Client& client = clients_[id];
  std::uint32_t size = 0, number = 0;
  if (bytes.size() < sizeof size) {
    return 0;
  }
  std::memcpy(&size, bytes.data(), sizeof size);
  if (size < 5 || size > (16u << 20)) {
    client.refusal = Refusal::kBadFrame;
    return 0;
  }
  if (size > room_.limits.request_bytes) {
    client.refusal = Refusal::kRequestTooLong;
    return 0;
  }
  if (bytes.size() < 4 + size) {
    return 0;
  }
  std::memcpy(&number, bytes.data() + 4, sizeof number);
  const auto operation = static_cast<std::uint8_t>(bytes[8]);
  const std::string payload(bytes.substr(9, size - 5));
  ++frames_;
  if (operation == 1) {
    client.expected.bytes(wire::frame(number, 0, FakeServer::kStatistics));
  } else if (operation >= wire::kOpen && operation <= wire::kAttach) {
    return coordinate(client, operation, payload) == 0 ? 0 : 4 + size;
  } else if (operation == 2 && client.session) {
    client.expected.bytes(wire::frame(number, 1, "a connection with a session cannot enter a keyspace"));
  } else if (operation != 2) {
    client.expected.bytes(wire::frame(number, 1, "unknown operation " + std::to_string(operation)));
  } else if (payload != "other") {
    client.expected.bytes(wire::frame(number, 1, "there is no keyspace '" + payload + "'"));
  } else {
    client.expected.bytes(wire::frame(number, 0, ""));
    client.phase = Phase::kStore;
    client.store = 1;
    stores_[0].leave(id);
    stores_[1].greet(id);
  }
  return 4 + size;
}

std::size_t Lockstep::coordinate(Client& client, std::uint8_t operation, const std::string& payload) {
  // There is no second implementation of this: that it is refused is taken from the first.
  ++requests_run_;
  client.coordinates = true;
  if (client.talk->refusal() != Refusal::kNone && client.left.size() == client.talk->left().size()) {
    client.refusal = client.talk->refusal();
    return 0;
  }
  std::uint32_t ttl_ms = 0;
  if (operation == wire::kOpen && payload.size() >= 8) {
    std::memcpy(&ttl_ms, payload.data(), 4);
    client.session = client.session || (ttl_ms >= 100 && ttl_ms <= 3'600'000 && is_utf8(payload.substr(8)));
  }
  return 1;
}

std::size_t Lockstep::request(std::size_t id, std::string_view bytes) {
  Client& client = clients_[id];
  const Parsed parsed = parse(bytes, room_.limits);
  client.refusal = parsed.refusal;
  if (parsed.size > 0) {
    ++requests_[static_cast<std::size_t>(parsed.type)];
    ++requests_run_;
    stores_[client.store].execute(id, parsed);
    client.refusal = stores_[client.store].refusal(id);
  }
  return parsed.size;
}

void Lockstep::compare_replies() {
  for (std::size_t id = 0; id < kClients; ++id) {
    Client& client = clients_[id];
    client.expected.then(stores_[client.store].take(id));
    const std::string heard = client.talk->hear();
    if (client.coordinates) {
      client.expected = {};
      continue;
    }
    const std::string wrong = std::exchange(client.expected, {}).mismatch(heard);
    require(wrong.empty(), wrong.c_str());
  }
}

void Lockstep::compare_keyspaces() {
  if (proxies_) {
    return;
  }
  const std::array<Keyspace*, 2> keyspaces{room_.keyspace.get(), room_.server.other.get()};
  for (std::size_t i = 0; i < keyspaces.size(); ++i) {
    const auto summary = keyspaces[i]->summary(~std::size_t{0}, 1);
    require(summary.keys == stores_[i].keys(), "another number of keys");
    require(summary.queues == stores_[i].filled_queues(), "another number of queues");
    require(summary.bytes == stores_[i].stored_bytes(), "another number of stored bytes");
    std::set<std::string> waited;
    for (const auto& each : summary.waited) {
      waited.insert(each.key);
    }
    require(waited == stores_[i].waited_keys(), "other keys are waited for");
    require(summary.waited_keys == waited.size(), "the number of waited keys is not that of the list");
  }
}

void Lockstep::finish() {
  compare_keyspaces();
  for (std::size_t i = 0; i < kQueryCount; ++i) {
    require(proxies_ || room_.counters.requests[i].get() == requests_[i], "another number of requests was counted");
  }
  require(proxies_ || room_.counters.frames.get() == frames_, "another number of frames was counted");
  for (std::size_t id = 0; id < kClients; ++id) {
    clients_[id].talk.reset();
    stores_[clients_[id].store].leave(id);
  }
  compare_keyspaces();
  require(room_.server.runs->summaries().empty(), "a run stays when its sessions have ended");
  require(room_.keyspace->connections.load() + room_.server.other->connections.load() == 0, "connections stay counted");
  require(room_.keyspace->summary(1, 1).waited_keys == 0, "waits stay when their clients have left");
  // To be told of what they do not wait for any more must do nothing.
  room_.deliver();
}

}  // namespace rdzv::test
