#include "rdzv/server.hpp"

#include <malloc.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <latch>
#include <stdexcept>
#include <utility>

namespace rdzv {

namespace {

constexpr std::uint32_t kMaxThreads = 64;
constexpr rlim_t kSpareDescriptors = 64;  // for the rest of the process

// What was freed on a loop's thread stays in that thread's arena otherwise.
void give_memory_back() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

std::uint32_t connection_limit(const Limits& limits) {
  if (limits.connections > 0) {
    return limits.connections;
  }
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) {
    return UINT32_MAX;
  }
  return static_cast<std::uint32_t>(files.rlim_cur > 2 * kSpareDescriptors ? files.rlim_cur - kSpareDescriptors
                                                                           : files.rlim_cur / 2);
}

// Those who say nothing leave at least half of the connections to the others.
std::size_t pending_limit(const Limits& limits) {
  return std::max<std::size_t>(1, std::min(limits.pending_connections, connection_limit(limits) / 2));
}

}  // namespace

std::uint32_t default_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return static_cast<std::uint32_t>(std::clamp(cores / 2, 1, 8));
}

Server::Server(Settings settings)
    : settings_(std::move(settings)),
      started_ms_(monotonic_ms()),
      log_(UniqueFd(settings_.log_fd)),
      spaces_(settings_.run),
      loop_group_{settings_.limits, log_, {}, connection_limit(settings_.limits),
                  {pending_limit(settings_.limits), settings_.limits.pending_per_address}},
      tokens_(std::make_shared<const Tokens>(settings_.tokens)) {
  const std::uint32_t threads = settings_.threads > 0 ? std::min(settings_.threads, kMaxThreads) : default_threads();
  for (std::uint32_t i = 0; i < threads; ++i) {
    loop_group_.loops.push_back(std::make_unique<EventLoop>(loop_group_, static_cast<ServerAccess&>(*this), i));
  }
  for (const auto& loop : loop_group_.loops) {
    loop->start();
  }
}

Server::~Server() {
  stop();
  if (forked()) {  // the threads are the parent's: nothing to join, and nothing that may be freed
    for (auto& loop : loop_group_.loops) {
      loop.release();
    }
  }
}

bool Server::forked() const { return getpid() != process_; }

void Server::stop() {
  if (forked()) {
    return;
  }
  const std::lock_guard admin(admin_);
  if (std::exchange(stopped_, true)) {
    return;
  }
  decltype(listeners_) closing;
  {
    const std::lock_guard names(names_);
    closing.swap(listeners_);
  }
  // First nobody accepts any more: else a loop would hand clients to one that has ended.
  for (const auto& [name, each] : closing) {
    close(*each);
  }
  for (const auto& loop : loop_group_.loops) {
    loop->stop();
  }
  log_.end();
}

void Server::close(Listener& listener) {
  listener.closed.store(true);
  listener.keyspace->pause.end();
  on_every_loop([&](EventLoop& loop) { loop.unlisten(listener); });
  // The loops have let go of it: whoever binds the port now gets it.
  listener.hang_up();
  Wakes nobody;
  for (const auto& trunk : listener.keyspace->trunks.all()) {
    trunk->end(nobody);
  }
}

void Server::on_every_loop(const std::function<void(EventLoop&)>& task) {
  std::latch done(static_cast<std::ptrdiff_t>(loop_group_.loops.size()));
  for (const auto& loop : loop_group_.loops) {
    loop->mailbox().post([&task, &done, &each = *loop] {
      task(each);
      done.count_down();
    });
  }
  done.wait();
}

Server::Opened Server::open_keyspace(const std::string& name, int socket, Admit admit, bool under_tls) {
  return open_listener(name, socket, std::make_shared<ServedKeyspace>(name), admit, under_tls);
}

void Server::renew(const Certificates& certificates) {
  if (!settings_.tls) {
    throw std::invalid_argument("it has no certificates to renew");
  }
  settings_.tls->renew(certificates);
}

void Server::accept_tokens(Tokens tokens) {
  auto fresh = std::make_shared<const Tokens>(std::move(tokens));
  const std::lock_guard lock(secrets_);
  tokens_.swap(fresh);
}

std::shared_ptr<const Tokens> Server::tokens() {
  const std::lock_guard lock(secrets_);
  return tokens_;
}

Server::Opened Server::open_listener(const std::string& name, int socket,
                                     std::shared_ptr<ServedKeyspace> keyspace_of_clients, Admit admit, bool under_tls) {
  UniqueFd fd(socket);
  if (forked()) {
    throw std::invalid_argument("the store server stayed in the process that has forked this one");
  }
  const std::lock_guard admin(admin_);
  if (stopped_) {
    throw std::invalid_argument("the store server was closed");
  }
  if (keyspace(name)) {
    throw std::invalid_argument("there is a keyspace '" + name + "' already");
  }
  if (under_tls && !settings_.tls) {
    throw std::invalid_argument("TLS needs certificates");
  }
  const auto opened = std::make_shared<Listener>(std::move(fd), std::move(keyspace_of_clients), ++last_id_, admit,
                                                 under_tls ? settings_.tls : nullptr);
  {
    const std::lock_guard names(names_);
    opened->own_user = own_user_;
    listeners_.emplace(name, opened);
  }
  on_every_loop([&](EventLoop& loop) { loop.listen(opened); });
  return {opened->id, opened->port};
}

void Server::only_own_user() {
  const std::lock_guard names(names_);
  own_user_ = true;
  for (const auto& [name, each] : listeners_) {
    each->own_user = true;
  }
}

void Server::close_keyspace(std::uint64_t id) {
  if (forked()) {
    return;
  }
  const std::lock_guard admin(admin_);
  const auto closing = listener(id);
  {
    const std::lock_guard names(names_);
    std::erase_if(listeners_, [&](const auto& each) { return each.second == closing; });
  }
  close(*closing);
  closing->keyspace->wipe();  // somebody may hold on to it for a moment
  give_memory_back();
}

void Server::wipe_keyspace(std::uint64_t id) {
  if (forked()) {
    return;
  }
  const std::lock_guard admin(admin_);
  const auto wiping = listener(id)->keyspace;
  bool more = true;
  for (std::size_t part = 0; more; ++part) {  // the loop serves others in between
    std::latch done(1);
    loop_group_.loops.front()->mailbox().post([&] {  // there, so that proxies can be told
      more = loop_group_.loops.front()->wipe(*wiping, part);
      done.count_down();
    });
    done.wait();
  }
  give_memory_back();
}

int Server::pause_after(std::uint64_t id, std::int64_t ms) {
  const int event = listener(id)->keyspace->pause.after(ms);
  for (const auto& loop : loop_group_.loops) {
    loop->mailbox().post([] {});  // so that each looks how long it may wait
  }
  return event;
}

std::uint64_t Server::pauses(std::uint64_t id) { return listener(id)->keyspace->pause.number(); }

bool Server::paused(std::uint64_t id) { return listener(id)->keyspace->pause.paused(); }

bool Server::resume(std::uint64_t id, std::uint64_t pause) {
  const auto keyspace = listener(id)->keyspace;
  if (!keyspace->pause.resume(pause)) {
    return false;
  }
  for (const auto& loop : loop_group_.loops) {
    loop->mailbox().post([keyspace, &each = *loop] { each.resume(*keyspace); });
  }
  return true;
}

std::shared_ptr<Listener> Server::listener(std::uint64_t id) {
  const std::lock_guard names(names_);
  for (const auto& [name, each] : listeners_) {
    if (each->id == id) {
      return each;
    }
  }
  throw std::out_of_range("this keyspace is closed");
}

std::shared_ptr<ServedKeyspace> Server::keyspace(std::string_view name) {
  const std::lock_guard names(names_);
  const auto found = listeners_.find(name);
  return found == listeners_.end() ? nullptr : found->second->keyspace;
}

}  // namespace rdzv
