// A proxy's end of the trunk: one connection to the root, made again when it breaks. On the one loop of the proxy.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "rdzv/connection.hpp"
#include "rdzv/server_access.hpp"
#include "rdzv/frame_log.hpp"
#include "rdzv/framing.hpp"
#include "rdzv/proof.hpp"
#include "rdzv/tls.hpp"
#include "rdzv/unique_fd.hpp"

namespace rdzv {

class Relay;

class Upstream : public Source {
 public:
  struct Traits {
    std::string name;
    bool leaf = true;
    std::int64_t grace_ms = 5000;
    std::vector<std::string> keys{};  // of the tokens to be proved to the root, the first that it knows; empty: none is
    std::string run{};                // for which they are proved
    std::shared_ptr<const TlsIdentity> tls{};  // what the trunk is under; null: neither
    std::string host{};                        // whose certificate the root has to have then
  };

  // `fd`: connected to the root, which has greeted; under TLS nothing has been said. Throws std::system_error.
  Upstream(UniqueFd fd, Traits traits);
  // On the loop's thread, once. `epoll`: where it is to wait.
  void start(Relay& relay, int epoll, std::int64_t now_ms);

  // A counted frame; sent at the end of the turn, and again if the connection breaks before the root has it.
  void push(Operation operation, std::uint32_t id, std::string_view payload);
  // More has not been taken by the root than is good: others are to wait.
  bool full() const { return log_.bytes() > kFull; }
  // The root has heard of this proxy recently enough: it still asks before it lets others write what is held here.
  // Counted from when the last sign of life was sent that the root has answered: what is read late does no harm.
  bool vouched_for(std::int64_t now_ms) const {
    return state_ == State::kAttached && now_ms - vouched_ms_ < hold_ms(traits_.grace_ms);
  }
  // The longest that the root has lately taken to answer a sign of life.
  std::int64_t round_trip_ms() const { return round_trip_ms_; }
  // Ends a connection that does not vouch any more.
  void check(std::int64_t now_ms);
  // After a break: proxies behind this one hold values until then, which the root is not to let others write.
  void not_before(std::int64_t when_ms) { not_before_ms_ = when_ms; }

  // This proxy ends: the root need not keep anything for it.
  void leave();

  void on_events(std::uint32_t events, std::int64_t now_ms);
  void end_turn(std::int64_t now_ms, std::uint64_t requests);
  std::int64_t next_ms() const {
    return state_ == State::kLost      ? INT64_MAX
           : state_ == State::kWaiting ? std::max(next_ms_, not_before_ms_)
                                       : next_ms_;
  }

  // Any thread.
  const Traits& traits() const { return traits_; }
  std::string root() const;
  bool attached() const { return said_attached_.get() != 0; }
  std::uint64_t reconnects() const { return reconnects_.get(); }
  std::uint64_t unacknowledged() const { return unacknowledged_.get(); }
  std::uint64_t counted() const { return counted_.get(); }
  std::uint64_t sent(std::size_t operation) const { return sent_[operation].get(); }

 private:
  static constexpr std::size_t kFull = 8u << 20;
  enum class State : std::uint8_t {
    kConnecting,
    kSecuring,    // the handshake of TLS
    kIntroduced,  // the root's challenge is awaited
    kProving,     // its own proof is
    kGreeting,
    kAttaching,
    kAttached,
    kWaiting,
    kLost
  };
  bool is_proving() const { return state_ == State::kIntroduced || state_ == State::kProving; }

  void secure();      // begins TLS
  void speak();       // the first word of ours
  void introduce();
  std::size_t take_proof(std::string_view bytes);  // as take(), while the sides prove what they know
  void attach(bool greet);
  void dial();
  void broken(const std::string& why);
  void give_up(const std::string& why);
  void tick(std::uint64_t requests);
  void acknowledge();
  void answered_beat();
  bool read();
  bool write();
  void hang_up();
  void failed(std::string why);  // a read or a write: by what TLS says of it, if it does
  std::size_t take(std::string_view bytes);
  void attached_to(std::string_view payload);
  void watch();
  void say(Operation operation, std::string_view payload);

  const Traits traits_;
  const std::uint64_t token_;
  sockaddr_storage address_{};
  socklen_t address_size_ = sizeof address_;
  Relay* relay_ = nullptr;
  int epoll_ = -1;
  UniqueFd fd_;
  std::unique_ptr<TlsStream> tls_;
  State state_ = State::kAttaching;
  std::uint32_t interest_ = 0;
  std::string chunk_ = std::string(256 * 1024, 0);  // of one read
  std::string inbox_;                               // what is not complete yet
  Output outbox_;
  FrameLog log_;
  std::uint64_t received_ = 0, said_received_ = 0;  // counted frames of the root; as it was last told
  Introduction introduction_;
  Digest challenge_{};
  std::uint64_t resent_ = 0;                        // of the next ones, how many are from before a break
  // Frames and bytes sent since the root was asked what it has, and bytes that it has sent since.
  std::uint64_t since_said_ = 0, bytes_since_said_ = 0, bytes_received_ = 0;
  bool known_ = false;                              // the root has once accepted this trunk
  std::deque<std::int64_t> beats_ms_;  // when signs of life were sent that have not been answered yet
  std::int64_t vouched_ms_ = 0, not_before_ms_ = 0, round_trip_ms_ = 0;
  std::int64_t now_ms_ = 0, broken_ms_ = 0, next_ms_ = 0, beat_ms_ = 0, report_ms_ = 0;
  std::int64_t pause_ms_ = 0;
  bool asks_ = false;  // what the root has is to be asked for behind what is sent next
  std::string last_trouble_;
  std::uint64_t run_at_break_ = UINT64_MAX;
  int fruitless_ = 0;
  Count said_attached_, reconnects_, unacknowledged_, counted_;
  std::array<Count, kTrunkNames.size()> sent_;
};

}  // namespace rdzv
