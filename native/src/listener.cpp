#include "rdzv/listener.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <climits>
#include <system_error>

namespace rdzv {

namespace {

void check(int result, const char* what) {
  if (result < 0) {
    throw std::system_error(errno, std::generic_category(), what);
  }
}

}  // namespace

void Listener::hang_up() {
  shutdown(fd.get(), SHUT_RDWR);
  fd.reset();
}

Listener::Listener(UniqueFd socket, std::shared_ptr<ServedKeyspace> keyspace_of_clients, std::uint64_t number,
                   Admit who, std::shared_ptr<const TlsIdentity> under)
    : Source(Kind::kListener),
      fd(std::move(socket)),
      keyspace(std::move(keyspace_of_clients)),
      id(number),
      admit(who),
      tls(std::move(under)) {
  const int flags = fcntl(fd.get(), F_GETFL);
  check(flags, "fcntl");
  check(fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK), "fcntl");
  const auto option = [&](int level, int name, int value) {
    check(setsockopt(fd.get(), level, name, &value, sizeof value), "setsockopt");
  };
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  check(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), "getsockname");
  if (local = address.ss_family == AF_UNIX; local) {
    check(listen(fd.get(), INT_MAX), "listen");
    return;
  }
  // Accepted sockets inherit these: no system call for each. Keep-alive finds machines that have vanished.
  option(IPPROTO_TCP, TCP_NODELAY, 1);
  option(SOL_SOCKET, SO_KEEPALIVE, 1);
  option(IPPROTO_TCP, TCP_KEEPIDLE, 60);
  option(IPPROTO_TCP, TCP_KEEPINTVL, 20);
  option(IPPROTO_TCP, TCP_KEEPCNT, 3);
  check(listen(fd.get(), INT_MAX), "listen");  // the kernel takes net.core.somaxconn instead
  check(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), "getsockname");
  port = ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

}  // namespace rdzv
