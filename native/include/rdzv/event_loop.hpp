// One thread, one epoll, the connections that were placed on it. See THREADS.md.
#pragma once

#include <sys/epoll.h>
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "rdzv/clock.hpp"
#include "rdzv/connection.hpp"
#include "rdzv/event_log.hpp"
#include "rdzv/listener.hpp"
#include "rdzv/mailbox.hpp"
#include "rdzv/relay.hpp"
#include "rdzv/upstream.hpp"

namespace rdzv {

class EventLoop;

// What the event loops of a server share. The vector does not change while they run.
struct LoopGroup {
  const Limits limits;
  EventLog& log;
  std::vector<std::unique_ptr<EventLoop>> loops;
  std::uint32_t max_connections = 0;
  PendingConnections pending;
  std::atomic<std::uint32_t> connections{0};
  std::atomic<std::uint32_t> peak{0};
  std::atomic<std::uint64_t> buffered{0};  // bytes of half-sent requests and unread replies
  std::atomic<std::int64_t> stranger_second{-1};  // in which the log last had a line about a stranger
  std::atomic<std::uint64_t> unsaid_strangers{0};  // since then
  std::atomic<bool> shedding{false};       // a loop was asked to close the worst of its clients

  bool buffers_full() const { return buffered.load() + SharedText::detached_bytes() > limits.buffered_bytes; }
};

class EventLoop : private Host {
 public:
  // Throws std::system_error.
  EventLoop(LoopGroup& loop_group, ServerAccess& server, std::uint32_t index);
  ~EventLoop() override;
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Once each. stop() waits for the thread, and closes its connections.
  void start();
  void stop();

  Mailbox& mailbox() { return mailbox_; }
  const Counters& counters() const { return counters_; }
  // Those that are placed here, on their way included.
  std::uint32_t connections() const { return connections_.load(std::memory_order_relaxed); }
  // Processor time of the thread, in nanoseconds; 0 once it has ended.
  std::int64_t cpu_ns() const;

  // On the loop's thread: as tasks in the mailbox.
  void listen(const std::shared_ptr<Listener>& listener);
  void unlisten(const Listener& listener);  // and closes the connections of its keyspace
  void adopt(UniqueFd fd, const Peer& peer, const std::shared_ptr<Listener>& listener);
  void resume(const Keyspace& keyspace);    // which has paused
  bool wipe(Keyspace& keyspace, std::size_t part) { return keyspace.wipe_part(part, &work_.context.pushes); }
  // From now on its clients are a proxy's. Before anything listens.
  void become_proxy(Upstream& upstream, const std::shared_ptr<ServedKeyspace>& keys);
  // Null: it is no proxy's. Its counters may be read by any thread.
  const Relay* relay() const { return relay_.get(); }

 private:
  static constexpr std::size_t kEvents = 512;       // handled in one turn
  static constexpr std::size_t kAcceptBatch = 512;  // accepted in one turn, of one listener

  void run();
  // How late it is, which is not held against those who were silent meanwhile; and whether keyspaces have to pause.
  void begin_turn(int wait_ms);
  // `asked`: loops that are to be told when what has come is read; a bit each.
  void turn(int count, epoll_event* events, std::uint64_t asked);
  // Serves one connection, and settles or closes it. Without events: goes on with what is here.
  void step(Connection& connection, std::uint32_t events,
            Questions questions = Questions::kLater);
  // True: its keyspace pauses, and it is not waited for until resume().
  bool parked(Connection& connection);

  // Questions are answered when the writes that were sent before them are done, in whichever socket of whichever loop
  // they lie; questions.cpp. See THREADS.md.
  std::uint64_t fall_asleep(int& wait_ms);  // returns who has asked this loop: then it does not sleep
  void answer_questions();
  void ask_others();  // to say when they have read what was sent by now, save those that have
  bool has_read_all() const;  // by another loop: what had been sent to this one, and has done it
  void caught_up();           // by another loop, which was asked
  bool awaits() const { return awaited_.load() > 0 && work_.context.running_ms() < patience_ends_ms_; }

  void settle(Connection& connection);  // after anything that may have changed what is waited for
  void watch(Connection& connection, std::uint32_t events);
  void count_memory(Connection& connection);
  void set_suspect(Connection& connection, bool suspect);
  void close(Connection& connection, Refusal why);
  void guard_memory();
  void shed_largest();
  void sweep();
  int timeout_ms() const;

  // What those who wait or watch are told.
  void deliver();  // wakes and pushes
  void deliver_pushes();
  void told(const Waiter& waiter);
  void told(const Subscriber& subscriber);
  void mark_dirty(Connection& connection);
  void send_dirty();

  // What the loop of a proxy does besides.
  void answer(void* connection, std::string_view raw) override;
  void go_on(void* connection) override;
  void refuse(void* connection, Refusal why) override;
  void pass_on() override { deliver(); }
  void close_all(const std::string& why) override;
  std::unordered_set<std::uint64_t> cut_trunks() override;
  void finish_turn();

  // Sessions and trunks that fall silent.
  void end_trunk(Connection& connection);
  void expire_trunks();
  void note_session(Connection& connection);    // which has one, or is a trunk; after anything that may have made it
  void forget_session(Connection& connection);  // before it ends
  void note_recall(Connection& connection);     // of which something may have been asked back
  std::int64_t recall_due_ms(const Connection& connection) const;  // see Trunk; in the time in which the loop has been running
  void expire_sessions();

  // Accepting, and keeping one client from hurting the others: acceptance.cpp.
  void accept_from(Listener& listener);
  bool take(UniqueFd fd, const Peer& peer, Listener& listener);
  void shed(Listener& listener);
  void pause_accepting();
  void resume_accepting();
  // `stranger`: of a port that is for those who prove who they are, and this one has not.
  void refuse(const Peer* peer, Refusal why, const Keyspace& keyspace, bool stranger = false);
  void note_pending(Connection& connection);    // which has just come
  void forget_pending(Connection& connection);  // it has greeted, or goes
  bool make_room();                             // closes one of these connections that has not greeted
  bool close_if_silent(Connection& connection);

  LoopGroup& loop_group_;
  const std::uint32_t index_;
  Counters counters_;
  Workplace work_;
  Mailbox mailbox_;
  Source mailbox_source_{Source::Kind::kMailbox};
  UniqueFd epoll_;
  UniqueFd reserve_;  // given up to accept and close one more when descriptors run out
  std::vector<std::shared_ptr<Listener>> listeners_;
  std::vector<std::unique_ptr<Connection>> connections_here_;
  std::vector<Connection*> suspects_;
  std::list<Connection*> pending_;  // have not greeted, the oldest first
  std::vector<Connection*> again_;    // have requests here, and had their turn
  std::vector<Connection*> due_;      // the same, when what was sent to this loop before they asked is read
  std::vector<Connection*> waiting_;  // the same, served when nobody is awaited
  enum class State : std::uint8_t { kAsleep, kReading, kAnswering };
  std::atomic<State> state_{State::kAnswering};
  std::atomic<std::uint32_t> awaited_{0};   // loops that were asked, and have not caught up
  std::atomic<std::uint64_t> asked_by_{0};  // a bit for each loop
  std::vector<Connection*> dirty_;  // were told something, have to be sent it
  std::vector<std::unique_ptr<Connection>> graveyard_;  // until the turn ends: its events may still name them
  std::vector<Wakes> outgoing_;     // by loop
  std::vector<Pushes> outgoing_pushes_;
  std::set<std::pair<std::int64_t, Connection*>> sessions_;  // by when each is looked at again: may be early, not late
  std::multimap<std::int64_t, std::shared_ptr<Trunk>> leaving_;  // by when each is forgotten
  std::unique_ptr<Relay> relay_;
  Upstream* upstream_ = nullptr;
  // Times are those of LoopContext::running_ms() save the first two.
  std::int64_t accept_again_ms_ = 0;  // 0: is accepting
  std::int64_t measured_ms_ = 0;      // when the next one was
  std::int64_t measured_cpu_ns_ = 0;  // of the thread
  std::int64_t next_sweep_ms_ = 0;
  std::int64_t patience_ends_ms_ = 0;  // with loops that were asked
  std::atomic<std::uint32_t> connections_{0};
  std::atomic<std::uint64_t> unfinished_{0};  // bytes, of the connections here
  bool stopping_ = false;
  std::thread thread_;
  clockid_t cpu_clock_{};  // of the thread; set before any connection can ask for it
};

}  // namespace rdzv
