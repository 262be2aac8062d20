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
      crew_{settings_.limits, log_, {}, connection_limit(settings_.limits)} {
  const std::uint32_t threads = settings_.threads > 0 ? std::min(settings_.threads, kMaxThreads) : default_threads();
  for (std::uint32_t i = 0; i < threads; ++i) {
    crew_.loops.push_back(std::make_unique<EventLoop>(crew_, static_cast<Desk&>(*this), i));
  }
  for (const auto& loop : crew_.loops) {
    loop->start();
  }
}

Server::~Server() {
  stop();
  if (forked()) {  // the threads are the parent's: nothing to join, and nothing that may be freed
    for (auto& loop : crew_.loops) {
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
  for (const auto& loop : crew_.loops) {
    loop->stop();
  }
  log_.end();
}

void Server::close(Listener& listener) {
  listener.closed.store(true);
  on_every_loop([&](EventLoop& loop) { loop.unlisten(listener); });
  // The loops have let go of it: whoever binds the port now gets it.
  listener.hang_up();
  Wakes nobody;
  for (const auto& trunk : listener.keyspace->trunks.all()) {
    trunk->end(nobody);
  }
}

void Server::on_every_loop(const std::function<void(EventLoop&)>& task) {
  std::latch done(static_cast<std::ptrdiff_t>(crew_.loops.size()));
  for (const auto& loop : crew_.loops) {
    loop->mailbox().post([&task, &done, &each = *loop] {
      task(each);
      done.count_down();
    });
  }
  done.wait();
}

Server::Opened Server::open_keyspace(const std::string& name, int socket) {
  return open_listener(name, socket, std::make_shared<Keyspace>(name));
}

Server::Opened Server::open_listener(const std::string& name, int socket, std::shared_ptr<Keyspace> keyspace_of_clients) {
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
  const auto opened = std::make_shared<Listener>(std::move(fd), std::move(keyspace_of_clients), ++last_id_);
  {
    const std::lock_guard names(names_);
    listeners_.emplace(name, opened);
  }
  on_every_loop([&](EventLoop& loop) { loop.listen(opened); });
  return {opened->id, opened->port};
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
  std::latch done(1);
  crew_.loops.front()->mailbox().post([&] {  // there, so that proxies can be told
    crew_.loops.front()->wipe(*wiping);
    done.count_down();
  });
  done.wait();
  give_memory_back();
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

std::shared_ptr<Keyspace> Server::keyspace(std::string_view name) {
  const std::lock_guard names(names_);
  const auto found = listeners_.find(name);
  return found == listeners_.end() ? nullptr : found->second->keyspace;
}

}  // namespace rdzv
