// The store server: event loops, keyspaces, each with a port of its own. Methods are thread-safe; none is called from
// a loop's thread save those of the ServerAccess, which connections ask for through the ServerAccess.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "rdzv/event_log.hpp"
#include "rdzv/event_loop.hpp"
#include "rdzv/limits.hpp"
#include "rdzv/listener.hpp"
#include "rdzv/server_access.hpp"
#include "rdzv/upstream.hpp"

namespace rdzv {

class Json;

struct Settings {
  std::uint32_t threads = 0;  // 0: default_threads()
  Limits limits;
  std::string version;  // said in the statistics
  int log_fd = -1;      // see EventLog; owned
  std::string run{};    // the only one that sessions may be opened for; empty: any
  Tokens tokens{};      // see Server::accept_tokens
  std::shared_ptr<TlsIdentity> tls{};  // of ports that speak TLS; whoever has it may renew it
};

// Half of the processors this process may use, at least 1 and at most 8: the rest of the machine has work to do.
std::uint32_t default_threads();

class Server : private ServerAccess {
 public:
  // Starts the event loops. Throws std::system_error.
  explicit Server(Settings settings);
  ~Server() override;
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  struct Opened {
    std::uint64_t id = 0;  // never used again
    std::uint16_t port = 0;
  };
  // `socket`: a bound TCP socket; owned from here on, whatever happens.
  // Throws std::system_error; std::invalid_argument if the name is taken or the server was stopped.
  // `under_tls`: for who speaks that, by the certificates of the settings, and nobody else.
  Opened open_keyspace(const std::string& name, int socket, Admit admit = Admit::kAnyone, bool under_tls = false);
  // The same, for connections that share an open keyspace.
  Opened open_listener(const std::string& name, int socket, std::shared_ptr<ServedKeyspace> keyspace,
                       Admit admit = Admit::kAnyone, bool under_tls = false);
  // Closes its port and its connections, and forgets its keys. Blocks until every loop has done so.
  // This and the next throw std::out_of_range if it is closed.
  void close_keyspace(std::uint64_t id);
  void wipe_keyspace(std::uint64_t id);
  // From now on new connections to ports that need a token are let in by these alone.
  void accept_tokens(Tokens tokens);
  // From now on new connections under TLS have these. Throws std::invalid_argument.
  void renew(const Certificates& certificates);
  // See Pause; these throw the same.
  int pause_after(std::uint64_t id, std::int64_t ms);
  std::uint64_t pauses(std::uint64_t id);
  bool resume(std::uint64_t id, std::uint64_t pause);
  bool paused(std::uint64_t id);

  std::uint32_t threads() const { return static_cast<std::uint32_t>(loop_group_.loops.size()); }
  std::string statistics() override;

  // Closes everything and waits for the threads. May be called more than once.
  void stop();

 protected:
  // More statistics, as further members of the object.
  virtual void describe(Json&) {}
  bool forked() const;
  const EventLoop& first_loop() const { return *loop_group_.loops.front(); }
  // From now on its TCP ports are for this user and root alone, as far as they are on this machine.
  void only_own_user();
  // Runs `task` once on every loop, and waits until all have.
  void on_every_loop(const std::function<void(EventLoop&)>& task);

 private:
  std::shared_ptr<ServedKeyspace> keyspace(std::string_view name) override;
  Spaces& spaces() override { return spaces_; }
  std::shared_ptr<const Tokens> tokens() override;
  std::shared_ptr<Listener> listener(std::uint64_t id);
  void close(Listener& listener);

  const pid_t process_ = getpid();
  const Settings settings_;
  const std::int64_t started_ms_;
  EventLog log_;
  Spaces spaces_;
  LoopGroup loop_group_;
  std::mutex admin_;  // one opens, closes or stops at a time
  bool stopped_ = false;
  std::mutex names_;  // guards listeners_; taken last, never while a shard is locked
  std::map<std::string, std::shared_ptr<Listener>, std::less<>> listeners_;  // by the keyspace's name
  std::uint64_t last_id_ = 0;
  bool own_user_ = false;  // guarded by names_
  std::mutex secrets_;     // guards tokens_; nothing is locked meanwhile
  std::shared_ptr<const Tokens> tokens_;
};

// The store proxy of a node: a server of one loop whose clients' keys are somewhere else.
class Proxy : private Server {
 public:
  // `trunk`: connected to the root, which has greeted, unless Traits::tls says otherwise. When the root is lost, the log
  // says so in one line that begins with "lost: ". Throws std::system_error.
  Proxy(Settings settings, UniqueFd trunk, Upstream::Traits traits);
  ~Proxy() override { stop(); }

  // A bound TCP or Unix socket; owned from here on, whatever happens. Returns its port. Throws as Server::open_keyspace.
  // `under_tls`: see Server::open_keyspace.
  std::uint16_t listen(int socket, Admit admit = Admit::kAnyone, bool under_tls = false);
  using Server::renew;  // of the trunk, too, when it is made again
  using Server::statistics;
  // Says good-bye to the root and closes everything. May be called more than once.
  void stop();

 private:
  void describe(Json& json) override;

  Upstream upstream_;
  const std::shared_ptr<ServedKeyspace> keys_;
  std::atomic<std::uint32_t> listeners_{0};
  std::atomic<bool> left_{false};
};

}  // namespace rdzv
