// Whose the other end of a TCP connection within this machine is, as the kernel's table of sockets has it.
#pragma once

#include <sys/types.h>

#include <optional>

namespace rdzv {

// The user who has made the socket that is connected to `fd`; nothing if there is none on this machine
// (any more), also when its process has closed it: older kernels then show it as root's.
// One question to the kernel, however many sockets there are; where it does not take that (no sock_diag), the tables in
// /proc are read, whose length is that of all sockets.
std::optional<uid_t> peer_owner(int fd);

}  // namespace rdzv
