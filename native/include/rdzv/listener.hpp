// A listening socket and the keyspace of those who connect to it. Shared by all event loops.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "rdzv/connection.hpp"
#include "rdzv/served_keyspace.hpp"
#include "rdzv/unique_fd.hpp"

namespace rdzv {

// Who is let in.
enum class Admit : std::uint8_t {
  kAnyone,   // of a Unix socket: this user and root
  kOwnUser,  // whose process on this machine is of this very user, as the kernel says
  kToken,    // who proves that he knows a token
};

struct Listener : Source {
  // Adopts a bound TCP or Unix socket and listens, with the system's largest backlog. `under`: TLS is all that is spoken.
  // Throws std::system_error.
  Listener(UniqueFd socket, std::shared_ptr<ServedKeyspace> keyspace_of_clients, std::uint64_t number, Admit who,
           std::shared_ptr<const TlsIdentity> under = nullptr);

  // Once no loop listens on it any more. Frees the port even if a forked child of this process holds the socket too.
  void hang_up();

  UniqueFd fd;
  std::uint16_t port = 0;
  bool local = false;  // a Unix socket: for this user alone
  std::atomic<bool> own_user{false};  // the same of TCP, for those who connect from this machine
  const std::shared_ptr<ServedKeyspace> keyspace;
  const std::uint64_t id;
  const Admit admit;
  const std::shared_ptr<const TlsIdentity> tls;  // null: there is none
  // Set before the loops are told: a connection that was accepted meanwhile is not taken on.
  std::atomic<bool> closed{false};
};

}  // namespace rdzv
