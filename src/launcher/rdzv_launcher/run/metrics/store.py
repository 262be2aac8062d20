"""The metrics of a native store, from its statistics: docs/reference/store-statistics.md says what each figure is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rdzv_launcher.run.metrics.declared import Metric, Reading, reading

INFO = Metric("rdzv_store", "info", "The version of rdzv-plugins that serves.", ("version",))
CONNECTIONS = Metric("rdzv_store_connections", "gauge", "Connections that are open now.")
CONNECTIONS_LIMIT = Metric("rdzv_store_connections_limit", "gauge", "Connections that are allowed at a time.")
ACCEPTED = Metric("rdzv_store_connections_accepted", "counter", "Connections that were ever accepted.")
REQUESTS = Metric(
    "rdzv_store_requests",
    "counter",
    "Requests by type; framed are all of our own framing, also those of a type.",
    ("type",),
)
PUSHES = Metric("rdzv_store_pushes", "counter", "Frames that were pushed to sessions that watch.")
EVENTS = Metric("rdzv_store_events", "counter", "Changes of keys that were pushed in these frames.")
REFUSED = Metric("rdzv_store_refused_clients", "counter", "Clients that were closed for what they did.", ("reason",))
RECEIVED = Metric("rdzv_store_received_bytes", "counter", "Bytes from all clients.")
SENT = Metric("rdzv_store_sent_bytes", "counter", "Bytes to all clients.")
STORED = Metric("rdzv_store_stored_bytes", "gauge", "Keys and values that are kept, queues and runs included.")
STORED_LIMIT = Metric("rdzv_store_stored_limit_bytes", "gauge", "The most that one keyspace may keep.")
BUFFERED = Metric("rdzv_store_buffered_bytes", "gauge", "Half-sent requests and replies that were not read yet.")
BUSY = Metric("rdzv_store_busy_seconds", "counter", "Time awake of all event loops.")
CPU = Metric("rdzv_store_cpu_seconds", "counter", "Processor time of all event loops.")
STALLED = Metric("rdzv_store_stalled_seconds", "counter", "Time for which event loops stood still.")
KEYS = Metric("rdzv_store_keys", "gauge", "Keys of TCPStore clients.")
WAITED = Metric("rdzv_store_waited_keys", "gauge", "Keys that somebody waits for.")
WAITERS = Metric(
    "rdzv_store_waiters",
    "gauge",
    "Clients that wait for one of the 100 keys of a keyspace that were waited for longest, once for each.",
)
OLDEST = Metric("rdzv_store_oldest_wait_seconds", "gauge", "The age of the longest wait for a key; 0: nobody waits.")
RUNS = Metric("rdzv_store_runs", "gauge", "Runs (jobs) that have sessions here.")
FORGOTTEN = Metric("rdzv_store_runs_forgotten", "counter", "Runs that have gone, with all of their keys.")
SESSIONS = Metric("rdzv_store_sessions", "gauge", "Sessions of all runs: the nodes of jobs, and who looks at them.")
WATCHES = Metric("rdzv_store_watches", "gauge", "Watches of all sessions.")
STORE = (
    INFO, CONNECTIONS, CONNECTIONS_LIMIT, ACCEPTED, REQUESTS, PUSHES, EVENTS, REFUSED, RECEIVED, SENT, STORED,
    STORED_LIMIT, BUFFERED, BUSY, CPU, STALLED, KEYS, WAITED, WAITERS, OLDEST, RUNS, FORGOTTEN, SESSIONS, WATCHES,
)  # fmt: skip


def read_store(stats: Mapping[str, Any]) -> Iterator[Reading]:
    """The values of ``STORE``, of a server's statistics."""
    connections, volume, keyspaces, runs = (stats[name] for name in ("connections", "bytes", "keyspaces", "runs"))
    waited = [each for keyspace in keyspaces for each in keyspace["waited"]]
    yield reading(INFO, 1, version=str(stats["server"]["version"]))
    yield reading(CONNECTIONS, connections["open"])
    yield reading(CONNECTIONS_LIMIT, connections["limit"])
    yield reading(ACCEPTED, connections["accepted"])
    for name, count in stats["requests"].items():
        yield reading(REQUESTS, count, type=name)
    yield reading(PUSHES, stats["pushes"])
    yield reading(EVENTS, stats["events"])
    for reason, count in stats["refused"].items():
        yield reading(REFUSED, count, reason=reason)
    yield reading(RECEIVED, volume["received"])
    yield reading(SENT, volume["sent"])
    yield reading(STORED, volume["stored"])
    yield reading(STORED_LIMIT, volume["stored_limit"])
    yield reading(BUFFERED, volume["buffered"])
    for metric, name in ((BUSY, "busy_s"), (CPU, "cpu_s"), (STALLED, "stalled_s")):
        yield reading(metric, sum(loop[name] for loop in stats["loops"]))
    yield reading(KEYS, sum(each["keys"] for each in keyspaces))
    yield reading(WAITED, sum(each["waited_keys"] for each in keyspaces))
    yield reading(WAITERS, sum(each["waiters"] for each in waited))
    yield reading(OLDEST, max((each["oldest_s"] for each in waited), default=0.0))
    yield reading(RUNS, len(runs))
    yield reading(FORGOTTEN, stats["runs_forgotten"])
    yield reading(SESSIONS, sum(each["sessions"] for each in runs))
    yield reading(WATCHES, sum(each["watches"] for each in runs))
