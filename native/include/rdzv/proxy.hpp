// The store proxy of a node: a server of one loop whose clients' keys are somewhere else.
#pragma once

#include <atomic>
#include <memory>

#include "rdzv/server.hpp"
#include "rdzv/upstream.hpp"

namespace rdzv {

class Proxy : private Server {
 public:
  // `trunk`: connected to the root, which has greeted, unless Traits::tls says otherwise. When the root is lost, the log says so in one line that begins
  // with "lost: ". Throws std::system_error.
  Proxy(Settings settings, UniqueFd trunk, Upstream::Traits traits);
  ~Proxy() override { stop(); }

  // A bound TCP or Unix socket; owned from here on, whatever happens. Returns its port. Throws as Server::open_keyspace.
  // `under_tls`: see Server::open_keyspace.
  std::uint16_t listen(int socket, Admit admit = Admit::kAnyone, bool under_tls = false);
  using Server::renew;  // of the trunk, too, when it is made again
  using Server::statistics;
  // Says good-bye to the root and closes everything. May be called more than once.
  void stop();

 private:
  void describe(Json& json) override;

  Upstream upstream_;
  const std::shared_ptr<ServedKeyspace> keys_;
  std::atomic<std::uint32_t> listeners_{0};
  std::atomic<bool> left_{false};
};

}  // namespace rdzv
