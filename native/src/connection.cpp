#include "rdzv/connection.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "rdzv/proof.hpp"

namespace rdzv {

namespace {
constexpr std::size_t kKeptBuffer = 1 << 20;
constexpr std::size_t kKeptPending = 4096;
}  // namespace

Connection::Connection(UniqueFd fd, std::shared_ptr<ServedKeyspace> keyspace, Workplace& work, bool guarded,
                       const TlsContext* tls)
    : Source(Kind::kConnection),
      fd_(std::move(fd)),
      guarded_(guarded),
      tls_(tls != nullptr ? TlsStream::to_client(*tls, fd_.get()) : nullptr),
      progress_ms_(work.context.running_ms()),
      conversation_(work.context, std::move(keyspace), peer_, this, guarded) {}

ssize_t Connection::receive(std::string& into) {
  if (!tls_) {
    return recv(fd_.get(), into.data(), into.size(), 0);
  }
  const ssize_t got = tls_->read(into.data(), into.size());
  if (got < 0) {
    refusal_ = tls_->refusal();
  }
  return got;
}

ssize_t Connection::send_parts(const msghdr& message) {
  if (tls_) {
    return tls_->write(message.msg_iov, message.msg_iovlen);
  }
  return message.msg_iovlen == 1 ? send(fd_.get(), message.msg_iov->iov_base, message.msg_iov->iov_len, MSG_NOSIGNAL)
                                 : sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
}

bool Connection::readable(Workplace& work, Questions questions) {
  const ssize_t got = receive(work.read_buffer);
  if (got <= 0) {
    return got < 0 && (errno == EAGAIN || errno == EINTR);
  }
  if (!tls_ && !conversation_.greeted() && pending_.empty() && work.read_buffer[0] == kTlsRecord) {
    refusal_ = Refusal::kTlsOffered;
    output_.raw(verdict_bytes(Verdict::kNoTlsHere));  // no record of TLS: whoever reads it knows that there is none
    return true;
  }
  work.context.counters.received.add(static_cast<std::uint64_t>(got));
  if (conversation_.greeted() && output_.empty()) {
    progress_ms_ = work.context.running_ms();
  }
  conversation_.heard();
  // Who leaves replies unread is no client that awaits them: its requests do not pile up here.
  const bool was_greeted = conversation_.greeted();
  feed({work.read_buffer.data(), static_cast<std::size_t>(got)}, work, output_.empty() ? questions : Questions::kNow);
  if (!was_greeted && !conversation_.greeted()) {
    early_bytes_ += static_cast<std::size_t>(got);
    if (early_bytes_ > work.context.limits.handshake_bytes && conversation_.refusal() == Refusal::kNone) {
      refusal_ = Refusal::kHandshakeTooLong;
    }
  }
  return true;
}

void Connection::resume(Workplace& work, Questions questions) {
  if ((!pending_.empty() || conversation_.has_queued()) && output_.empty()) {
    feed({}, work, questions);
  }
}

void Connection::feed(std::string_view fresh, Workplace& work, Questions questions) {
  if (output_.empty()) {
    output_.lend(std::move(work.reply_buffer));
  }
  if (conversation_.gathered() > 0) {
    progress_ms_ = work.context.running_ms();  // it is the server that takes its time
  }
  if (pending_.empty()) {
    const std::size_t used = conversation_.feed(fresh, output_, work.wakes, questions);
    pending_.assign(fresh.substr(used));
    return;
  }
  pending_.append(fresh);
  const std::size_t used = conversation_.feed(pending_, output_, work.wakes, questions);
  if (const std::size_t left = pending_.size() - used; pending_.capacity() > 4 * left + kKeptPending) {
    std::string(pending_, used).swap(pending_);  // also gives back what a long request has needed
  } else {
    pending_.erase(0, used);
  }
}

void Connection::hang_up() {
  if (tls_) {
    tls_->close();
    tls_.reset();
  }
  // Also for a forked child of this process that holds the socket too: then closing it here alone would not end it.
  shutdown(fd_.get(), SHUT_RDWR);
  fd_.reset();
  std::string().swap(pending_);
  output_.clear();
  conversation_.end();
}

bool Connection::flush(Workplace& work) {
  while (!output_.empty()) {
    std::array<iovec, 16> parts;
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = output_.gather(parts.data(), parts.size());
    const ssize_t sent = send_parts(message);
    if (sent < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno != EAGAIN) {
        return false;
      }
      if (output_.owned() > work.context.limits.output_bytes) {
        refusal_ = Refusal::kUnreadReplies;
        return false;
      }
      return true;
    }
    work.context.counters.sent.add(static_cast<std::uint64_t>(sent));
    output_.consume(static_cast<std::size_t>(sent));
    if (conversation_.greeted()) {  // else it has one limit, however much is said before
      progress_ms_ = work.context.running_ms();
    }
  }
  if (std::string buffer = output_.release(); buffer.capacity() <= kKeptBuffer) {
    work.reply_buffer = std::move(buffer);
  }
  return true;
}

Refusal Connection::overdue(const LoopContext& context) const {
  const std::int64_t waited = still_for(context);
  if (!conversation_.greeted()) {
    return waited > context.limits.handshake_ms ? Refusal::kNoHandshake : Refusal::kNone;
  }
  if (waited <= context.limits.stall_ms) {
    return Refusal::kNone;
  }
  return output_.empty() ? Refusal::kHalfSent : Refusal::kDoesNotRead;
}

std::uint32_t Connection::interest() const {
  if (wants_room()) {
    return EPOLLOUT;
  }
  return (reads() ? EPOLLIN : 0u) | (output_.empty() ? 0u : EPOLLOUT);
}

}  // namespace rdzv
