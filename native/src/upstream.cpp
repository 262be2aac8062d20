#include "rdzv/upstream.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <system_error>
#include <utility>

#include "rdzv/clock.hpp"
#include "rdzv/peer.hpp"
#include "rdzv/relay.hpp"
#include "rdzv/framing.hpp"

namespace rdzv {

namespace {

constexpr std::uint64_t kSayAfter = 64, kSayAfterBytes = 1 << 20;  // counted frames, and what is in them
constexpr std::int64_t kFirstPauseMs = 20, kLongestPauseMs = 500;

std::uint64_t random_token() {
  std::uint64_t token = 0;
  if (getrandom(&token, sizeof token, 0) != sizeof token) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return token;
}

void make_ready(int fd) {
  const int on = 1, idle = 20;
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
}

constexpr std::size_t kLength = 4, kHead = 5, kGreeting = 8;
constexpr int kMostFruitless = 5;
constexpr std::int64_t kAskAgainMs = 10;

}  // namespace

Upstream::Upstream(UniqueFd fd, Traits traits)
    : Source(Kind::kUpstream), traits_(std::move(traits)), token_(random_token()), fd_(std::move(fd)) {
  if (getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&address_), &address_size_) < 0) {
    throw std::system_error(errno, std::generic_category(), "getpeername");
  }
  make_ready(fd_.get());
}

std::string Upstream::root() const { return peer_of(address_).endpoint(); }

void Upstream::start(Relay& relay, int epoll, std::int64_t now_ms) {
  relay_ = &relay;
  epoll_ = epoll;
  now_ms_ = broken_ms_ = now_ms;
  watch();
  if (traits_.tls) {
    secure();
  } else {
    attach(false);
  }
}

void Upstream::watch() {
  epoll_event event{};
  event.events = interest_ = EPOLLIN | EPOLLOUT;
  event.data.ptr = static_cast<Source*>(this);
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd_.get(), &event);
}

void Upstream::attach(bool greet) {
  outbox_.clear();
  if (greet) {
    outbox_.raw(std::string_view("\xf7", 1));
    outbox_.raw(kFramingMagic);
    outbox_.number(kFramingVersion);
  }
  std::string payload;
  add_number(payload, token_);
  add_number(payload, received_);
  add_number(payload, static_cast<std::uint32_t>(traits_.grace_ms));
  add_number(payload, static_cast<std::uint8_t>((traits_.leaf ? kLeaf : 0) | (known_ ? kAgain : 0)));
  add_text(payload, traits_.name);
  outbox_.raw(make_frame(0, static_cast<std::uint8_t>(Operation::kAttach), payload));
  state_ = greet ? State::kGreeting : State::kAttaching;
  beats_ms_.assign(1, now_ms_);
  beat_ms_ = now_ms_ + hold_ms(traits_.grace_ms) / 3;
  next_ms_ = beat_ms_;
}

void Upstream::secure() {
  try {
    tls_ = TlsStream::to_server(*traits_.tls->current(), fd_.get(), traits_.host);
  } catch (const std::bad_alloc&) {
    return broken("out of memory");
  }
  state_ = State::kSecuring;
  next_ms_ = now_ms_ + std::max<std::int64_t>(traits_.grace_ms / 2, 1);
  outbox_.clear();
  if (!tls_->begin()) {
    failed("it has closed the connection");
  }
}

void Upstream::speak() {
  if (traits_.keys.empty()) {
    attach(true);
  } else {
    introduce();
  }
}

void Upstream::introduce() {
  outbox_.clear();
  const auto nonce = fresh_nonce();
  if (!nonce) {
    return broken("the kernel has no random numbers");
  }
  introduction_ = {Purpose::kTrunk, *nonce, traits_.run};
  outbox_.raw(introduction_.bytes());
  state_ = State::kIntroduced;
}

void Upstream::push(Operation operation, std::uint32_t id, std::string_view payload) {
  log_.add(make_frame(id, static_cast<std::uint8_t>(operation), payload));
  sent_[trunk_index(operation)].add(1);
  counted_.add(1);
  ++since_said_;
  bytes_since_said_ += payload.size();
}

void Upstream::say(Operation operation, std::string_view payload) {
  outbox_.raw(make_frame(0, static_cast<std::uint8_t>(operation), payload));
}

void Upstream::acknowledge() {
  std::string payload;
  add_number(payload, received_);
  say(Operation::kReceived, payload);
  beats_ms_.push_back(now_ms_);
  said_received_ = received_;
  since_said_ = bytes_since_said_ = bytes_received_ = 0;
}

void Upstream::check(std::int64_t now_ms) {
  if (state_ == State::kAttached && !vouched_for(now_ms)) {
    now_ms_ = now_ms;
    broken("it has not answered a sign of life for " + std::to_string(now_ms - vouched_ms_) + " ms");
  }
}

void Upstream::answered_beat() {
  if (!beats_ms_.empty()) {
    vouched_ms_ = beats_ms_.front();
    round_trip_ms_ = std::max(now_ms_ - vouched_ms_, round_trip_ms_ * 7 / 8);
    beats_ms_.pop_front();
  }
}

void Upstream::on_events(std::uint32_t events, std::int64_t now_ms) {
  now_ms_ = now_ms;
  if (state_ == State::kLost || state_ == State::kWaiting) {
    return;
  }
  if (state_ == State::kConnecting) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == ECONNREFUSED) {  // its process has gone, and all that it knew
      return give_up("it refuses connections");
    }
    if (error != 0) {
      return broken(std::generic_category().message(error));
    }
    if ((events & EPOLLOUT) == 0) {
      return;
    }
    if (traits_.tls) {
      secure();
    } else {
      speak();
    }
    if (state_ == State::kWaiting || state_ == State::kLost) {
      return;
    }
  }
  const bool reads = (events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0 || (tls_ && tls_->wants_room());
  if (reads && !read()) {
    return;
  }
}

void Upstream::hang_up() {
  if (fd_) {
    tls_.reset();
    shutdown(fd_.get(), SHUT_RDWR);
    epoll_ctl(epoll_, EPOLL_CTL_DEL, fd_.get(), nullptr);
    fd_.reset();
  }
}

void Upstream::failed(std::string why) {
  if (tls_) {
    if (const std::string trouble = tls_->trouble(); !trouble.empty()) {
      if (tls_->refusal() != Refusal::kBadTls || !known_) {
        return give_up("TLS: " + trouble);  // as long as nobody changes certificates
      }
      why = "TLS: " + trouble;
    }
  }
  broken(why);
}

void Upstream::broken(const std::string& why) {
  last_trouble_ = why;
  hang_up();
  if (said_attached_.get() != 0) {
    said_attached_.set(0);
    reconnects_.add(1);
    broken_ms_ = now_ms_;
    relay_->trunk_broken();
  }
  state_ = State::kWaiting;
  pause_ms_ = std::clamp(2 * pause_ms_, kFirstPauseMs, kLongestPauseMs);
  next_ms_ = now_ms_ + (pause_ms_ == kFirstPauseMs ? 0 : pause_ms_);
  if (now_ms_ - broken_ms_ >= traits_.grace_ms) {
    give_up(why);
  }
}

void Upstream::give_up(const std::string& why) {
  if (state_ == State::kLost) {
    return;
  }
  state_ = State::kLost;
  if (said_attached_.get() != 0) {
    relay_->trunk_broken();
  }
  said_attached_.set(0);
  hang_up();
  relay_->lost("the store's root at " + root() + " is lost: " + why);
}

void Upstream::leave() {
  if (state_ == State::kAttached) {
    const bool alone = !relay_->has_children();  // else they may answer from what they hold a little longer
    relay_->trunk_broken();
    if (alone) {
      say(Operation::kLeave, {});
      write();
    }
  }
  state_ = State::kLost;
  said_attached_.set(0);
  if (fd_) {  // also for a forked child of this process that holds the socket too
    if (tls_) {
      tls_->close();
      tls_.reset();
    }
    shutdown(fd_.get(), SHUT_WR);
    epoll_ctl(epoll_, EPOLL_CTL_DEL, fd_.get(), nullptr);
    fd_.reset();
  }
}

void Upstream::dial() {
  fd_ = UniqueFd(socket(address_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd_) {
    return broken(std::generic_category().message(errno));
  }
  make_ready(fd_.get());
  inbox_.clear();
  state_ = State::kConnecting;
  next_ms_ = now_ms_ + std::max<std::int64_t>(traits_.grace_ms / 2, 1);
  const int result = connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address_), address_size_);
  if (result < 0 && errno == ECONNREFUSED) {
    return give_up("it refuses connections");
  }
  if (result < 0 && errno != EINPROGRESS) {
    return broken(std::generic_category().message(errno));
  }
  watch();
}

void Upstream::tick(std::uint64_t requests) {
  if (state_ != State::kAttached && now_ms_ - broken_ms_ >= traits_.grace_ms) {
    return give_up((last_trouble_.empty() ? "it does not answer" : last_trouble_) + ", and it could not be reached again for " +
                   std::to_string(traits_.grace_ms) + " ms");
  }
  if (state_ == State::kWaiting) {
    if (now_ms_ >= next_ms()) {
      dial();
    }
    return;
  }
  if (state_ == State::kConnecting || state_ == State::kSecuring) {
    if (now_ms_ >= next_ms_) {
      broken(state_ == State::kConnecting ? "it does not answer" : "it does not go on with TLS");
    }
    return;
  }
  if (state_ != State::kAttached) {
    next_ms_ = std::min(now_ms_ + traits_.grace_ms / 6 + 1, broken_ms_ + traits_.grace_ms);
    return;
  }
  check(now_ms_);
  if (state_ != State::kAttached) {
    return;
  }
  if (now_ms_ >= report_ms_) {
    say(Operation::kReport, relay_->report(traits_.name, requests));
    report_ms_ = now_ms_ + traits_.grace_ms / 3;
  }
  if (now_ms_ >= beat_ms_ || since_said_ >= kSayAfter || received_ - said_received_ >= kSayAfter ||
      bytes_since_said_ >= kSayAfterBytes || bytes_received_ >= kSayAfterBytes) {
    asks_ = true;
    beat_ms_ = now_ms_ + hold_ms(traits_.grace_ms) / 3;
  }
  next_ms_ = beat_ms_;
}

void Upstream::end_turn(std::int64_t now_ms, std::uint64_t requests) {
  now_ms_ = now_ms;
  if (state_ == State::kLost) {
    return;
  }
  tick(requests);
  if (state_ == State::kSecuring || is_proving() || state_ == State::kGreeting || state_ == State::kAttaching || state_ == State::kAttached) {
    write();
  }
  unacknowledged_.set(log_.bytes());
}

// The bytes of the trunk, in and out, and what the root's frames are.

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
