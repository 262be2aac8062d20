// One client's socket, on one event loop for life.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "rdzv/conversation.hpp"
#include "rdzv/peer.hpp"
#include "rdzv/tls.hpp"
#include "rdzv/unique_fd.hpp"

namespace rdzv {

// What an epoll event points to.
struct Source {
  enum class Kind : std::uint8_t { kMailbox, kListener, kConnection, kUpstream };
  explicit Source(Kind kind_of_source) : kind(kind_of_source) {}
  const Kind kind;
};

// What the connections of an event loop share.
struct Workplace {
  LoopContext context;
  std::string read_buffer;   // for one read of any connection
  std::string reply_buffer;  // lent to the connection that is being served
  Wakes wakes;               // to be told at the end of the turn
};

class Connection : public Source {
 public:
  // `tls`: what it is to speak, and nothing else; null: neither.
  Connection(UniqueFd fd, std::shared_ptr<ServedKeyspace> keyspace, Workplace& work, bool guarded, const TlsContext* tls);

  // Reads once and runs what has come; flush() sends the replies. False: the client has left.
  bool readable(Workplace& work, Questions questions);
  // Goes on with requests that are here already, once the replies to earlier ones are sent.
  void resume(Workplace& work, Questions questions);
  bool woken(const Waiter& waiter) { return conversation_.woken(waiter, output_); }
  // False: nothing was left for its session.
  bool pushed() { return conversation_.pushed(output_); }
  // Sends what can be sent. False: the connection is to be closed, with refusal() as the reason; kNone: the client left.
  bool flush(Workplace& work);

  // In a proxy: what the root says, see Conversation.
  void answered(std::string_view raw) { conversation_.answered(raw, output_); }
  void go_on() { conversation_.go_on(); }
  void refuse(Refusal why) { conversation_.refuse_for_root(why); }
  // Ends its session; the trunk that is to be kept, if it is one.
  std::shared_ptr<Trunk> end() { return conversation_.end(); }
  bool is_trunk() const { return conversation_.is_trunk(); }
  // See Trunk; nothing for other connections.
  std::int64_t recall_due_ms() const { return trunk() ? trunk()->recall_due_ms() : INT64_MAX; }
  void postpone_recalls(std::int64_t ms) {
    if (trunk()) {
      trunk()->postpone_recalls(ms);
    }
  }
  Trunk* trunk() const { return conversation_.trunk(); }
  std::uint64_t token() const { return trunk() ? trunk()->traits().token : 0; }

  // There may be complete requests here, which nothing but their turn is missing for.
  bool wants_turn() const {
    return output_.empty() && !conversation_.suspended() &&
           (conversation_.has_queued() || (conversation_.stopped_early() && !pending_.empty()));
  }
  // It has a question, which is answered in its turn: nothing is read meanwhile.
  bool held_back() const { return loop.again && conversation_.held_back(); }
  bool asks_alone() const { return conversation_.asks_alone(); }
  // The server waits for this client: to greet, to send the rest of a request, to read its replies.
  bool suspect() const {
    const bool served = conversation_.suspended() || conversation_.held_back();  // or about to be
    return !conversation_.greeted() || (!pending_.empty() && !served) || !output_.empty();
  }
  bool greeted() const { return conversation_.greeted(); }
  // Of a stranger, as far as this port can tell: it is for those who prove who they are, and this one has not.
  bool is_strangers() const { return guarded_ && !conversation_.greeted(); }
  // Milliseconds since the client last did what it is waited for.
  std::int64_t still_for(const LoopContext& context) const { return context.running_ms() - progress_ms_; }
  // Not kNone: it has waited too long.
  Refusal overdue(const LoopContext& context) const;

  Session* session() const { return conversation_.session(); }
  Lease* lease() { return conversation_.lease(); }
  // When its session, or trunk, has been silent for too long. A client that is not read from because it does not read counts as
  // heard when it last did.
  std::int64_t lease_ends_ms() {
    return std::max(lease()->heard_ms, reads() ? 0 : progress_ms_) + lease()->ttl_ms;
  }
  // After a time in which the server did not listen to it: as if it had been heard just now.
  void excuse(const LoopContext& context) {
    progress_ms_ = context.running_ms();
    conversation_.heard();
  }
  // False: it leaves too many replies unread to be read from.
  bool reads() const { return output_.size() < Conversation::kHighWater && conversation_.reads(); }

  // A keyspace whose process has stood still serves nobody.
  bool pauses() { return conversation_.pauses(); }

  // TLS has to say something before more is read, and there is no room in the socket.
  bool wants_room() const { return tls_ && tls_->wants_room(); }

  int fd() const { return fd_.get(); }
  // Gives up the socket, the session and all memory; the rest lives on until the turn ends.
  void hang_up();
  std::uint32_t interest() const;  // epoll events
  Refusal refusal() const { return refusal_ != Refusal::kNone ? refusal_ : conversation_.refusal(); }
  // Memory that is held for this client alone, and the same with the values that it shares with others.
  std::size_t held() const { return half_sent() + output_.owned(); }
  std::size_t unfinished() const { return half_sent() + output_.size(); }
  const Peer& peer() const { return peer_; }
  Peer& peer() { return peer_; }
  const Keyspace& keyspace() const { return conversation_.keyspace(); }

  // Kept here for the event loop.
  struct {
    std::size_t index = 0;         // in its list of connections
    std::size_t suspect_index = 0; // in its list of suspects, from 1; 0: not there
    std::size_t held = 0;          // as they were last added up
    std::size_t unfinished = 0;
    std::uint32_t interest = 0;
    bool dirty = false;
    bool again = false;
    bool closed = false;
    bool parked = false;  // its keyspace pauses: it is not waited for
    std::shared_ptr<PendingConnections::Ticket> pending;  // until it has greeted
    std::list<Connection*>::iterator in_pending;          // of its loop; only then
  } loop;

 private:
  void feed(std::string_view fresh, Workplace& work, Questions questions);
  std::size_t half_sent() const { return pending_.size() + conversation_.gathered() + (tls_ ? tls_->held() : 0); }
  // As recv() and sendmsg(); what is wrong with TLS becomes its refusal.
  ssize_t receive(std::string& into);
  ssize_t send_parts(const msghdr& message);

  UniqueFd fd_;
  const bool guarded_;
  std::size_t early_bytes_ = 0;  // received before it has greeted
  std::unique_ptr<TlsStream> tls_;  // null: the socket's bytes are the protocol's
  Refusal refusal_ = Refusal::kNone;
  Peer peer_;
  std::int64_t progress_ms_;  // of the time in which its loop has been running: when the client last did what it is waited for
  std::string pending_;       // the beginning of a request, and what is behind it
  Output output_;
  Conversation conversation_;
};

}  // namespace rdzv
