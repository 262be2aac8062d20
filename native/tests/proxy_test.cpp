// Proxies over real sockets and several loops, for the thread sanitizer; what they save and keep right is in tests/wire.
#include <sys/socket.h>
#include <unistd.h>

#include "check.hpp"
#include "client.hpp"
#include "rdzv/server.hpp"
#include "threads.hpp"

namespace rdzv::test {

namespace {

// A connection to a root, which has greeted.
UniqueFd trunk_to(std::uint16_t port) {
  Client client(port);
  CHECK_EQUAL(client.ask(wire::framed_greeting(), 8), wire::framed_welcome());
  return UniqueFd(dup(client.fd()));
}

struct Node {
  explicit Node(std::uint16_t root, bool leaf = true, std::int64_t grace_ms = 5000)
      : proxy({1, Limits(), "test", -1}, trunk_to(root), {"node", leaf, grace_ms}), port(proxy.listen(bound_socket())) {}
  Client client() const {
    Client made(port);
    made.greet();
    return made;
  }
  Proxy proxy;
  std::uint16_t port;
};

void write_and_read(std::vector<Client>& clients) {
  run_threads(clients.size(), [&](std::size_t number) {
    Client& client = clients[number];
    const std::string mine = "k" + std::to_string(number % 2);
    for (int round = 0; round < 60; ++round) {
      const std::string value = std::to_string(number) + "-" + std::to_string(round);
      client.say(wire::set(mine, value) + wire::wait({mine}));
      CHECK_EQUAL(client.hear(1), wire::stop_waiting());
      client.say(wire::get(mine));
      const std::string size = client.hear(8);
      client.hear(static_cast<std::size_t>(static_cast<unsigned char>(size[0])));
      client.ask(wire::add("sum", 1), 8);
      CHECK_EQUAL(client.ask(wire::barrier("b" + std::to_string(round), static_cast<std::int64_t>(clients.size())), 1),
                  wire::stop_waiting());
    }
  });
  CHECK_EQUAL(clients[0].ask(wire::add("sum", 0), 8), wire::i64(static_cast<std::int64_t>(60 * clients.size())));
}

}  // namespace

TEST(clients_of_two_proxies_and_of_the_root_write_the_same_keys) {
  Host host(3);
  Node a(host.port()), b(host.port());
  std::vector<Client> clients;
  for (int i = 0; i < 2; ++i) {
    clients.push_back(a.client());
    clients.push_back(b.client());
    clients.push_back(host.client());
  }
  write_and_read(clients);
  CHECK(host.figure("requests", "recalled") > 0);
}

TEST(clients_of_a_second_tier_write_the_same_keys) {
  Host host(2);
  Node middle(host.port(), false);
  Node leaf(middle.port), other(middle.port);
  std::vector<Client> clients;
  clients.push_back(leaf.client());
  clients.push_back(other.client());
  clients.push_back(middle.client());
  clients.push_back(host.client());
  write_and_read(clients);
}

TEST(a_keyspace_that_closes_ends_the_proxy) {
  Host host(2);
  Node node(host.port());
  Client client = node.client();
  client.ask(wire::ping(1), 4);
  client.say(wire::wait({"never"}));
  host.server().close_keyspace(host.first().id);
  CHECK(client.sees_close());
}

TEST(a_root_that_ends_while_proxies_write_ends_them) {
  auto host = std::make_unique<Host>(2);
  Node node(host->port());
  Client client = node.client();
  CHECK_EQUAL(client.ask(wire::add("n", 1), 8), wire::i64(1));
  host.reset();
  CHECK(client.sees_close());
}

TEST(proxies_end_while_their_clients_ask) {
  Host host(3);
  for (int round = 0; round < 5; ++round) {
    auto node = std::make_unique<Node>(host.port(), true, 200);
    std::vector<Client> clients;
    for (int i = 0; i < 4; ++i) {
      clients.push_back(node->client());
      clients.back().say(wire::set("k", "v") + wire::wait({"never" + std::to_string(i)}) + wire::get("k") + wire::add("n", 1));
    }
    node.reset();
    for (Client& client : clients) {
      client.read_to_end();
    }
  }
  CHECK(eventually([&] { return host.server().statistics().find("\"trunks\":[]") != std::string::npos; }));
}

}  // namespace rdzv::test
