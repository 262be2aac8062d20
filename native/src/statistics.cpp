// What `rdzv status` shows: every figure as it is when its turn comes, without stopping anybody.
#include <unistd.h>

#include <map>
#include <vector>

#include "json.hpp"
#include "rdzv/server.hpp"

namespace rdzv {

namespace {

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

}  // namespace rdzv
