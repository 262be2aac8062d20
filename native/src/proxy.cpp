#include "rdzv/proxy.hpp"

#include <sys/socket.h>

#include "json.hpp"

namespace rdzv {

Proxy::Proxy(Settings settings, UniqueFd trunk, Upstream::Traits traits)
    : Server(std::move(settings)),
      upstream_(std::move(trunk), std::move(traits)),
      keys_(std::make_shared<ServedKeyspace>("proxy")) {
  on_every_loop([&](EventLoop& loop) { loop.become_proxy(upstream_, keys_); });
}

std::uint16_t Proxy::listen(int socket, Admit admit, bool under_tls) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 && address.ss_family == AF_UNIX) {
    only_own_user();  // who asks for that means it of the ports, too, by which stock clients begin
  }
  const auto number = listeners_.fetch_add(1);
  return open_listener(number == 0 ? "proxy" : "proxy " + std::to_string(number + 1), socket, keys_, admit, under_tls).port;
}

void Proxy::stop() {
  if (!forked() && !left_.exchange(true)) {
    on_every_loop([&](EventLoop&) { upstream_.leave(); });
  }
  Server::stop();
}

void Proxy::describe(Json& json) {
  json.key("proxy").open('{').pair("root", std::string_view(upstream_.root()));
  json.key("attached").value(upstream_.attached()).pair("reconnects", upstream_.reconnects());
  json.key("upstream").open('{');
  for (std::size_t i = 0; i < kTrunkNames.size(); ++i) {
    if (is_counted(static_cast<Operation>(static_cast<std::size_t>(kFirstOfTrunk) + i))) {
      json.pair(kTrunkNames[i], upstream_.sent(i));
    }
  }
  json.close('}');
  if (const Relay* const relay = first_loop().relay()) {
    json.key("saved").open('{').pair("waits", relay->saved_waits.get()).pair("adds", relay->saved_adds.get());
    json.pair("arrivals", relay->saved_arrivals.get()).pair("hits", relay->saved_hits.get()).close('}');
    json.pair("ahead", relay->ahead.get());
  }
  const Keyspace::Summary held = keys_->summary(0, 0);
  json.key("cached").open('{').pair("keys", held.keys).pair("bytes", held.bytes).close('}');
  json.pair("unacknowledged", upstream_.unacknowledged()).close('}');
}

}  // namespace rdzv
