#include "rdzv/server.hpp"

#include <malloc.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <latch>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "rdzv/text.hpp"

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

constexpr std::size_t kKeysListed = 100;
constexpr std::size_t kClientsListed = 20;

double seconds(std::int64_t ns) { return static_cast<double>(ns) / 1e9; }

template <class Pick>
std::uint64_t total(const LoopGroup& loop_group, Pick pick) {
  std::uint64_t sum = 0;
  for (const auto& loop : loop_group.loops) {
    sum += pick(loop->counters()).get();
  }
  return sum;
}

void add_waited(Json& json, const Keyspace::Summary& summary, std::int64_t now_ms) {
  const auto age = [&](std::int64_t since_ms) { return static_cast<double>(now_ms - since_ms) / 1e3; };
  json.pair("waited_keys", summary.waited_keys);
  json.key("waited").open('[');
  for (const auto& each : summary.waited) {
    json.open('{').pair("key", std::string_view(each.key)).pair("waiters", each.waiters);
    json.pair("oldest_s", age(each.since_ms));
    json.key("clients").open('[');
    for (const auto& client : each.clients) {
      json.open('{').pair("address", std::string_view(client.endpoint)).pair("pid", client.pid);
      json.pair("waiting_s", age(client.since_ms)).close('}');
    }
    json.close(']').close('}');
  }
  json.close(']');
}

void add_trunks(Json& json, ServedKeyspace& keyspace) {
  json.key("trunks").open('[');
  for (const auto& trunk : keyspace.trunks.all()) {
    const Trunk::Summary summary = trunk->summary();
    json.open('{').pair("name", std::string_view(summary.name)).pair("address", std::string_view(summary.address));
    json.key("attached").value(summary.attached).pair("follows", summary.follows);
    json.pair("report", std::string_view(summary.report)).close('}');
  }
  json.close(']');
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

// What `rdzv status` shows: every figure as it is when its turn comes, without stopping anybody.

std::string Server::statistics() {
  const std::int64_t now_ms = monotonic_ms();
  Json json;
  json.open('{');
  json.key("server").open('{').pair("version", std::string_view(settings_.version)).pair("pid", getpid());
  json.pair("threads", threads()).pair("uptime_s", static_cast<double>(now_ms - started_ms_) / 1e3).close('}');

  json.key("connections").open('{').pair("open", loop_group_.connections.load()).pair("peak", loop_group_.peak.load());
  json.pair("accepted", total(loop_group_, [](const Counters& c) -> auto& { return c.accepted; }));
  json.pair("closed", total(loop_group_, [](const Counters& c) -> auto& { return c.closed; }));
  json.pair("limit", loop_group_.max_connections).pair("pending", loop_group_.pending.count()).close('}');

  json.key("requests").open('{');
  for (std::size_t i = 0; i < kQueryCount; ++i) {
    json.pair(kQueries[i].name, total(loop_group_, [i](const Counters& c) -> auto& { return c.requests[i]; }));
  }
  for (std::size_t i = 0; i < kCoordination.size(); ++i) {
    json.pair(kCoordination[i], total(loop_group_, [i](const Counters& c) -> auto& { return c.coordination[i]; }));
  }
  for (std::size_t i = 0; i < kTrunkNames.size(); ++i) {
    if (const auto operation = static_cast<Operation>(static_cast<std::size_t>(kFirstOfTrunk) + i);
        operation == Operation::kAttach || is_counted(operation)) {  // not signs of life
      json.pair(kTrunkNames[i], total(loop_group_, [i](const Counters& c) -> auto& { return c.trunk[i]; }));
    }
  }
  json.pair("framed", total(loop_group_, [](const Counters& c) -> auto& { return c.frames; })).close('}');

  json.pair("pushes", total(loop_group_, [](const Counters& c) -> auto& { return c.pushes; }));
  json.pair("events", total(loop_group_, [](const Counters& c) -> auto& { return c.events; }));

  json.key("refused").open('{');
  for (std::size_t i = 1; i < kRefusals.size(); ++i) {
    if (const auto count = total(loop_group_, [i](const Counters& c) -> auto& { return c.refused[i]; }); count > 0) {
      json.pair(kRefusals[i], count);
    }
  }
  json.close('}');

  const std::map<std::string, std::shared_ptr<Listener>, std::less<>> listeners = [&] {
    const std::lock_guard names(names_);
    return listeners_;
  }();
  std::map<const Keyspace*, Keyspace::Summary> summaries;  // several ports may lead to one keyspace
  std::size_t stored = 0;
  for (const auto& [name, each] : listeners) {
    const auto [summary, fresh] = summaries.try_emplace(each->keyspace.get());
    if (fresh) {
      summary->second = each->keyspace->summary(kKeysListed, kClientsListed);
      stored += summary->second.bytes;
    }
  }
  const std::vector<RunSpace::Summary> runs = spaces_.summaries();
  for (const RunSpace::Summary& run : runs) {
    stored += run.bytes;
  }
  json.key("bytes").open('{').pair("received", total(loop_group_, [](const Counters& c) -> auto& { return c.received; }));
  json.pair("sent", total(loop_group_, [](const Counters& c) -> auto& { return c.sent; }));
  json.pair("buffered", loop_group_.buffered.load() + SharedText::detached_bytes()).pair("stored", stored);
  json.pair("stored_limit", settings_.limits.stored_bytes).close('}');

  json.key("loops").open('[');
  for (const auto& loop : loop_group_.loops) {
    const Counters& counters = loop->counters();
    json.open('{').pair("connections", loop->connections()).pair("turns", counters.turns.get());
    json.pair("busy_s", seconds(static_cast<std::int64_t>(counters.busy_ns.get()))).pair("cpu_s", seconds(loop->cpu_ns()));
    json.pair("stalled_s", static_cast<double>(counters.stalled_ms.get()) / 1e3);
    json.pair("wakes", counters.wakes.get()).pair("queued", loop->mailbox().size()).close('}');
  }
  json.close(']');

  json.key("keyspaces").open('[');
  for (const auto& [name, each] : listeners) {
    const auto found = summaries.extract(each->keyspace.get());
    if (!found) {
      continue;
    }
    const Keyspace::Summary& summary = found.mapped();
    json.open('{').pair("name", std::string_view(name)).pair("port", each->port);
    json.pair("connections", each->keyspace->connections.load()).pair("keys", summary.keys);
    json.pair("queues", summary.queues).pair("queued", summary.queued).pair("bytes", summary.bytes);
    json.key("paused").value(each->keyspace->pause.paused()).pair("pauses", each->keyspace->pause.number());
    add_waited(json, summary, now_ms);
    add_trunks(json, *each->keyspace);
    json.close('}');
  }
  json.close(']');

  const Limits& limits = settings_.limits;
  json.key("limits").open('{').pair("stored_bytes", limits.stored_bytes).pair("stored_keys", limits.stored_keys);
  json.pair("run_bytes", limits.run_bytes).pair("run_keys", limits.run_keys);
  json.pair("sessions", limits.sessions).pair("run_sessions", limits.run_sessions);
  json.pair("watches", limits.watches).pair("run_watches", limits.run_watches);
  json.pair("pending_connections", loop_group_.pending.most());
  json.pair("pending_per_address", loop_group_.pending.most_per_address());
  json.pair("handshake_bytes", limits.handshake_bytes).close('}');

  json.key("runs").open('[');
  for (const RunSpace::Summary& run : runs) {
    json.open('{').pair("name", std::string_view(run.name)).pair("sessions", run.sessions).pair("keys", run.keys);
    json.pair("watches", run.watches).pair("revision", run.revision).pair("bytes", run.bytes).close('}');
  }
  json.close(']').pair("runs_forgotten", spaces_.forgotten());
  describe(json);
  json.close('}');
  return json.take();
}

Proxy::Proxy(Settings settings, UniqueFd trunk, Upstream::Traits traits)
    : Server(std::move(settings)),
      upstream_(std::move(trunk), std::move(traits)),
      keys_(std::make_shared<ServedKeyspace>("proxy")) {
  on_every_loop([&](EventLoop& loop) { loop.become_proxy(upstream_, keys_); });
}

std::uint16_t Proxy::listen(int socket, Admit admit, bool under_tls) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 && address.ss_family == AF_UNIX) {
    only_own_user();  // who asks for that means it of the ports, too, by which stock clients begin
  }
  const auto number = listeners_.fetch_add(1);
  return open_listener(number == 0 ? "proxy" : "proxy " + std::to_string(number + 1), socket, keys_, admit, under_tls).port;
}

void Proxy::stop() {
  if (!forked() && !left_.exchange(true)) {
    on_every_loop([&](EventLoop&) { upstream_.leave(); });
  }
  Server::stop();
}

void Proxy::describe(Json& json) {
  json.key("proxy").open('{').pair("root", std::string_view(upstream_.root()));
  json.key("attached").value(upstream_.attached()).pair("reconnects", upstream_.reconnects());
  json.key("upstream").open('{');
  for (std::size_t i = 0; i < kTrunkNames.size(); ++i) {
    if (is_counted(static_cast<Operation>(static_cast<std::size_t>(kFirstOfTrunk) + i))) {
      json.pair(kTrunkNames[i], upstream_.sent(i));
    }
  }
  json.close('}');
  if (const Relay* const relay = first_loop().relay()) {
    json.key("saved").open('{').pair("waits", relay->saved_waits.get()).pair("adds", relay->saved_adds.get());
    json.pair("arrivals", relay->saved_arrivals.get()).pair("hits", relay->saved_hits.get()).close('}');
    json.pair("ahead", relay->ahead.get());
  }
  const Keyspace::Summary held = keys_->summary(0, 0);
  json.key("cached").open('{').pair("keys", held.keys).pair("bytes", held.bytes).close('}');
  json.pair("unacknowledged", upstream_.unacknowledged()).close('}');
}

}  // namespace rdzv
