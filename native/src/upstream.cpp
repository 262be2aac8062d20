#include "rdzv/upstream.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "rdzv/peer.hpp"
#include "rdzv/relay.hpp"
#include "trunk_frames.hpp"

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

}  // namespace rdzv
