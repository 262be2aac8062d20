// The bytes of the trunk, in and out, and what the root's frames are.
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "rdzv/clock.hpp"
#include "rdzv/relay.hpp"
#include "rdzv/upstream.hpp"

namespace rdzv {

namespace {

constexpr std::size_t kLength = 4, kHead = 5, kGreeting = 8;
constexpr int kMostFruitless = 5;
constexpr std::int64_t kAskAgainMs = 10;

}  // namespace

bool Upstream::read() {
  while (true) {
    const ssize_t got = tls_ ? tls_->read(chunk_.data(), chunk_.size()) : recv(fd_.get(), chunk_.data(), chunk_.size(), 0);
    const int error = errno;
    if (state_ == State::kSecuring && tls_->secured()) {
      speak();
      if (state_ == State::kWaiting || state_ == State::kLost) {
        return false;
      }
    }
    if (got < 0 && (error == EAGAIN || error == EINTR)) {
      return true;
    }
    if (got <= 0) {
      failed(got == 0 ? "it has closed the connection" : std::generic_category().message(error));
      return false;
    }
    check(monotonic_ms());  // what lay here while this process stood still is not passed on
    const std::string_view fresh(chunk_.data(), static_cast<std::size_t>(got));
    if (!inbox_.empty()) {
      inbox_.append(fresh);
    }
    const std::string_view bytes = inbox_.empty() ? fresh : std::string_view(inbox_);
    std::size_t used = 0;
    while (state_ != State::kLost && state_ != State::kWaiting) {
      const std::size_t size = take(bytes.substr(used));
      if (size == 0) {
        break;
      }
      used += size;
    }
    if (state_ == State::kLost || state_ == State::kWaiting) {
      return false;
    }
    if (inbox_.empty()) {
      inbox_.assign(fresh.substr(used));
    } else {
      inbox_.erase(0, used);
    }
    if (!tls_ && static_cast<std::size_t>(got) < chunk_.size()) {
      return true;
    }
  }
}

std::size_t Upstream::take_proof(std::string_view bytes) {
  if (bytes.size() < kVerdictSize) {
    return 0;
  }
  const auto said = verdict(bytes);
  if (said != Verdict::kGoOn) {
    give_up(said == Verdict::kRefused || said == Verdict::kNotOpened ? "it does not accept this job's token any more"
            : said == Verdict::kNoTokenHere ? "what serves there now knows no token"
            : said == Verdict::kTlsNeeded   ? "what serves there now speaks TLS"
                                            : "something else than a native store with this job's token answers there");
    return 0;
  }
  if (state_ == State::kIntroduced) {
    if (bytes.size() < kChallengeSize) {
      return 0;
    }
    std::memcpy(challenge_.data(), bytes.data() + kVerdictSize, kDigestSize);
    const auto mine = proofs(traits_.keys, introduction_, challenge_);
    if (!mine) {
      give_up("libcrypto has made no proof");
      return 0;
    }
    outbox_.raw(*mine);
    state_ = State::kProving;
    return kChallengeSize;
  }
  if (bytes.size() < kAcceptedSize) {
    return 0;
  }
  const auto which = static_cast<std::size_t>(static_cast<unsigned char>(bytes[kVerdictSize]));
  const auto expected = which < traits_.keys.size()
                            ? proof(traits_.keys[which], Side::kServer, introduction_, challenge_)
                            : std::nullopt;
  if (!expected || !same_secret(bytes.substr(kVerdictSize + 1, kDigestSize), view(*expected))) {
    give_up("what answers there has not proved that it knows this job's token");
    return 0;
  }
  attach(true);
  return kAcceptedSize;
}

std::size_t Upstream::take(std::string_view bytes) {
  if (is_proving()) {
    return take_proof(bytes);
  }
  if (state_ == State::kGreeting) {
    if (bytes.size() < kGreeting) {
      return 0;
    }
    if (bytes.substr(0, 4) != kFramingMagic) {
      give_up("something else than a native store answers there");
      return 0;
    }
    state_ = State::kAttaching;
    return kGreeting;
  }
  if (bytes.size() < kLength + kHead) {
    return 0;
  }
  std::uint32_t size = 0, id = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  std::memcpy(&id, bytes.data() + kLength, sizeof id);
  const auto status = static_cast<FrameStatus>(bytes[kLength + 4]);
  if (size < kHead) {
    give_up("what it says cannot be understood");
    return 0;
  }
  if (bytes.size() < kLength + size) {
    return 0;
  }
  const std::string_view payload = bytes.substr(kLength + kHead, size - kHead);
  if (state_ == State::kAttaching) {
    if (status != FrameStatus::kOk || payload.size() != 16) {
      give_up(status == FrameStatus::kError ? std::string(payload) : "what it says cannot be understood");
      return 0;
    }
    attached_to(payload);
  } else if (status == FrameStatus::kReceived) {
    std::uint64_t count = 0;
    std::memcpy(&count, payload.data(), std::min(payload.size(), sizeof count));
    if (payload.size() != sizeof count || !log_.acknowledge(count)) {
      give_up("it claims to have what it was not sent");
      return 0;
    }
    answered_beat();
    if (count > run_at_break_) {
      fruitless_ = 0;
    }
    if (full()) {  // those who wait for room are not to wait for the next sign of life
      beat_ms_ = next_ms_ = std::min(beat_ms_, now_ms_ + kAskAgainMs);
    } else {
      relay_->confirmed();
    }
  } else if (status <= FrameStatus::kError || (status >= FrameStatus::kValue && status <= FrameStatus::kQueued)) {
    ++received_;
    bytes_received_ += size;
    const bool resent = resent_ > 0;
    resent_ -= resent ? 1 : 0;
    relay_->on_frame(id, status, payload, resent);
  } else {
    give_up("what it says cannot be understood");
    return 0;
  }
  return kLength + size;
}

void Upstream::attached_to(std::string_view payload) {
  std::uint64_t has = 0;
  std::memcpy(&has, payload.data(), sizeof has);
  std::memcpy(&resent_, payload.data() + 8, sizeof resent_);
  if (!log_.rewind(has)) {
    return give_up("it claims to have what it was not sent");
  }
  // A request that ends the connection would do so for ever. One that breaks while nobody asks for anything is no sign of that.
  fruitless_ = log_.kept() > 0 && has == run_at_break_ ? fruitless_ + 1 : 0;
  run_at_break_ = has;
  if (fruitless_ > kMostFruitless) {
    return give_up("it ends the connection again and again: " + last_trouble_);
  }
  known_ = true;
  state_ = State::kAttached;
  answered_beat();
  said_attached_.set(1);
  pause_ms_ = 0;
  beat_ms_ = now_ms_;
  report_ms_ = now_ms_;
}

bool Upstream::write() {
  if (state_ == State::kAttached) {
    log_.take(outbox_);
    if (std::exchange(asks_, false)) {
      acknowledge();  // behind the frames: the answer counts them
    }
  }
  while (!outbox_.empty()) {
    std::array<iovec, 16> parts;
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = outbox_.gather(parts.data(), parts.size());
    const ssize_t sent =
        tls_ ? tls_->write(message.msg_iov, message.msg_iovlen) : sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno != EAGAIN) {
        failed(std::generic_category().message(errno));
        return false;
      }
      break;
    }
    outbox_.consume(static_cast<std::size_t>(sent));
  }
  const bool wants_room = tls_ && tls_->wants_room();
  const std::uint32_t interest = (wants_room ? 0u : static_cast<std::uint32_t>(EPOLLIN)) |
                                 (wants_room || !outbox_.empty() ? static_cast<std::uint32_t>(EPOLLOUT) : 0u);
  if (interest != interest_) {
    epoll_event event{};
    event.events = interest_ = interest;
    event.data.ptr = static_cast<Source*>(this);
    epoll_ctl(epoll_, EPOLL_CTL_MOD, fd_.get(), &event);
  }
  return true;
}

}  // namespace rdzv
