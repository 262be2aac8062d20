#include "rdzv/peer.hpp"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "rdzv/unique_fd.hpp"

namespace rdzv {

namespace {

constexpr std::array<unsigned char, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// One end of a connection. IPv4 within IPv6 is IPv4.
struct End {
  int family = AF_UNSPEC;
  std::uint16_t port = 0;  // as on the wire, as is the address
  std::array<std::uint32_t, 4> address{};
};

End end_of(const sockaddr_storage& from) {
  End end;
  if (from.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(from);
    end = {AF_INET, v4.sin_port, {v4.sin_addr.s_addr}};
  } else if (from.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(from);
    end = {AF_INET6, v6.sin6_port, {}};
    std::memcpy(end.address.data(), &v6.sin6_addr, sizeof v6.sin6_addr);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      end = {AF_INET, v6.sin6_port, {end.address[3]}};
    }
  }
  return end;
}

enum class Answer { kFound, kClosed, kNone, kUnknown };

Answer ask_kernel(const End& theirs, const End& ours, uid_t& owner) {
  const UniqueFd netlink(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  struct {
    nlmsghdr header;
    inet_diag_req_v2 request;
  } question{};
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  question.request.sdiag_family = static_cast<std::uint8_t>(theirs.family);
  question.request.sdiag_protocol = IPPROTO_TCP;
  question.request.idiag_states = ~0u;
  question.request.id.idiag_sport = theirs.port;
  question.request.id.idiag_dport = ours.port;
  std::copy(theirs.address.begin(), theirs.address.end(), question.request.id.idiag_src);
  std::copy(ours.address.begin(), ours.address.end(), question.request.id.idiag_dst);
  question.request.id.idiag_cookie[0] = question.request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (!netlink || send(netlink.get(), &question, sizeof question, 0) != static_cast<ssize_t>(sizeof question)) {
    return Answer::kUnknown;
  }
  alignas(nlmsghdr) char answer[4096];
  const ssize_t size = recv(netlink.get(), answer, sizeof answer, MSG_DONTWAIT);  // it is there: the kernel answers at once
  const auto& header = reinterpret_cast<const nlmsghdr&>(answer);
  if (size >= static_cast<ssize_t>(NLMSG_LENGTH(sizeof(inet_diag_msg))) && header.nlmsg_type == SOCK_DIAG_BY_FAMILY) {
    const auto& found = *reinterpret_cast<const inet_diag_msg*>(answer + NLMSG_HDRLEN);
    owner = found.idiag_uid;
    // what its process has closed is nobody's any more: older kernels show it as root's
    return found.idiag_state == TCP_ESTABLISHED && found.idiag_inode != 0 ? Answer::kFound : Answer::kClosed;
  }
  if (size >= static_cast<ssize_t>(NLMSG_LENGTH(sizeof(nlmsgerr))) && header.nlmsg_type == NLMSG_ERROR &&
      reinterpret_cast<const nlmsgerr*>(answer + NLMSG_HDRLEN)->error == -ENOENT) {
    return Answer::kNone;
  }
  return Answer::kUnknown;
}

std::string as_in_table(const End& end) {
  std::string text;
  for (std::size_t i = 0; i < (end.family == AF_INET ? 1 : 4); ++i) {
    char word[16];
    std::snprintf(word, sizeof word, "%08X", end.address[i]);
    text += word;
  }
  char port[8];
  std::snprintf(port, sizeof port, ":%04X", ntohs(end.port));
  return text + port;
}

std::optional<uid_t> search_tables(const End& theirs, const End& ours) {
  const auto both = [&](const std::string& prefix) {
    return " " + prefix + as_in_table(theirs) + " " + prefix + as_in_table(ours) + " ";
  };
  const std::string plain = both(""), mapped = both("0000000000000000FFFF0000");
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const std::unique_ptr<FILE, int (*)(FILE*)> table(std::fopen(path, "re"), &std::fclose);
    for (char line[512]; table && std::fgets(line, sizeof line, table.get()) != nullptr;) {
      unsigned uid = 0, state = 0;
      unsigned long inode = 0;
      if ((std::strstr(line, plain.c_str()) != nullptr || std::strstr(line, mapped.c_str()) != nullptr) &&
          std::sscanf(line, "%*s %*s %*s %x %*s %*s %*s %u %*s %lu", &state, &uid, &inode) == 3) {
        return state == TCP_ESTABLISHED && inode != 0 ? std::optional<uid_t>(uid) : std::nullopt;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

bool Peer::is_loopback() const {
  if (std::equal(kMapped.begin(), kMapped.end(), address.begin())) {
    return address[12] == 127;
  }
  return address.back() == 1 && std::all_of(address.begin(), address.end() - 1, [](auto byte) { return byte == 0; });
}

std::string Peer::host() const {
  if (local) {
    return "a Unix socket";
  }
  char text[INET6_ADDRSTRLEN] = "?";
  const bool v4 = std::equal(kMapped.begin(), kMapped.end(), address.begin());
  inet_ntop(v4 ? AF_INET : AF_INET6, address.data() + (v4 ? 12 : 0), text, sizeof text);
  return text;
}

std::string Peer::endpoint() const {
  const std::string text = host();
  if (local) {
    return text;
  }
  const bool v6 = text.find(':') != std::string::npos;
  return (v6 ? "[" + text + "]:" : text + ":") + std::to_string(port);
}

Peer peer_of(const sockaddr_storage& address) {
  Peer peer;
  if (address.ss_family == AF_UNIX) {
    peer.local = true;
  } else if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    std::memcpy(peer.address.data(), &v6.sin6_addr, 16);
    peer.port = ntohs(v6.sin6_port);
  } else {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    peer.address[10] = peer.address[11] = 0xff;
    std::memcpy(peer.address.data() + 12, &v4.sin_addr, 4);
    peer.port = ntohs(v4.sin_port);
  }
  return peer;
}

std::optional<uid_t> peer_owner(int fd) {
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof here, there_size = sizeof there;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_size) < 0 ||
      getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_size) < 0) {
    return std::nullopt;
  }
  const End theirs = end_of(there), ours = end_of(here);
  uid_t owner = 0, own = 0;
  Answer answer = ask_kernel(theirs, ours, owner);
  if (answer == Answer::kNone && ask_kernel(ours, theirs, own) == Answer::kNone) {
    answer = Answer::kUnknown;  // it does not find this end either: it has not got the module that answers
  }
  switch (answer) {
    case Answer::kFound: return owner;
    case Answer::kClosed:
    case Answer::kNone: return std::nullopt;
    case Answer::kUnknown: break;
  }
  return search_tables(theirs, ours);
}

std::shared_ptr<PendingConnections::Ticket> PendingConnections::enter(const std::shared_ptr<Ticket>& ticket) {
  const std::lock_guard lock(mutex_);
  auto& here = by_address_[ticket->address];
  ticket->in_all = all_.insert(all_.end(), ticket);
  ticket->in_address = here.insert(here.end(), ticket.get());
  ticket->listed = true;
  std::shared_ptr<Ticket> oldest;
  if (here.size() > most_per_address_) {
    oldest = *here.front()->in_all;
  } else if (all_.size() > most_) {
    oldest = all_.front();
  }
  if (oldest) {
    erase(*oldest);
  }
  return oldest;
}

void PendingConnections::leave(Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  if (ticket.listed) {
    erase(ticket);
  }
}

std::size_t PendingConnections::count() {
  const std::lock_guard lock(mutex_);
  return all_.size();
}

void PendingConnections::erase(Ticket& ticket) {
  ticket.listed = false;
  const auto here = by_address_.find(ticket.address);
  here->second.erase(ticket.in_address);
  if (here->second.empty()) {
    by_address_.erase(here);
  }
  all_.erase(ticket.in_all);  // last: it may be what keeps the ticket
}

}  // namespace rdzv
