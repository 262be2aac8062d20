"""What stores tell Prometheus, and how a scrape is answered: in the text form of OpenMetrics, by prometheus_client.

What a metric is, is declared here once: the reference page and the answer to a scrape are made from that.
docs/reference/store-statistics.md says what each figure of a store is. An agent may serve two stores: the one where the
nodes meet, and the workers' store. ``rdzv serve`` serves one.

No label contains what a stranger can choose, except for the run in ``rdzv_agent_info``, which is the agent's own: a
server at which anybody may open runs would grow Prometheus without end. So nothing is by run or by key.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from rdzv_plugins.errors import MissingDependency
from rdzv_plugins.plain_text import printable


class Metric(Struct, frozen=True):
    """A family of OpenMetrics. A unit is at the end of the name, as usual in Prometheus: ``_seconds``, ``_bytes``."""

    name: str
    """The name without ``_total`` or ``_info``."""
    kind: Literal["counter", "gauge", "info", "stateset"]
    help: str
    labels: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """The unit: ``seconds``, ``bytes``, or empty for a number of things."""
        last = self.name.rpartition("_")[2]
        return last if last in ("seconds", "bytes") else ""

    @property
    def sample(self) -> str:
        """The name under which its values are stored and queried."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")


class Reading(NamedTuple):
    """A value of a metric, for one set of its labels."""

    metric: Metric
    value: float
    labels: Mapping[str, str]


def reading(metric: Metric, value: float, /, **labels: str) -> Reading:
    """Make a reading. Raises ``ValueError`` if the labels are not the declared ones."""
    if set(labels) != set(metric.labels):
        raise ValueError(f"{metric.name} has the labels {metric.labels}, not {sorted(labels)}")
    return Reading(metric, value, labels)


CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_FRESH_S = 1.0
"""Figures younger than this are repeated unchanged: even in a flood of scrapes they are read only once a second."""


def check_installed() -> None:
    """Raises ``MissingDependency`` without prometheus_client."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            f"metrics are written by prometheus_client, which cannot be imported: {error}",
            remedy="pip install 'rdzv-plugins[metrics]', and start this process again.",
        ) from error


class MetricsPage:
    """The metrics of one process, and what the kernel says about it. Thread-safe; costs nothing while nobody asks."""

    def __init__(self, declared: Sequence[Metric], read: Callable[[], Iterable[Reading]]) -> None:
        """``read`` returns the current values of ``declared``; it is called on the thread that asks."""
        self._declared, self._read = declared, read
        self._lock = threading.Lock()
        self._registry: Any = None
        self._text, self._until = "", 0.0

    def text(self) -> str:
        """The whole page. Raises ``MissingDependency`` without prometheus_client, and whatever ``read`` raises."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._text = self._render()
                self._until = time.monotonic() + _FRESH_S
            return self._text

    def _render(self) -> str:
        check_installed()
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.openmetrics import exposition

        if self._registry is None:
            self._registry = CollectorRegistry(auto_describe=False)
            ProcessCollector(registry=self._registry)
            self._registry.register(self)
        written: Callable[[Any], bytes] = exposition.generate_latest
        return written(self._registry).decode()

    def collect(self) -> Iterator[Any]:
        """Collect the metrics, in the form in which prometheus_client asks its collectors."""
        from prometheus_client.metrics_core import Metric as Family

        families = {each.name: Family(each.name, each.help, each.kind, each.unit) for each in self._declared}
        for metric, value, labels in self._read():
            shown = {name: printable(text) for name, text in labels.items()}
            families[metric.name].add_sample(metric.sample, shown, value)
        yield from families.values()

    def describe(self) -> Iterator[Any]:
        """Return nothing, so that nothing is read before the first scrape."""
        return iter(())


def _metric(name: str, kind: Literal["counter", "gauge", "info"], what: str, *labels: str) -> Metric:
    return Metric(name, kind, what, ("store", *labels))


INFO = _metric("rdzv_store", "info", "The version of rdzv-plugins that serves.", "version")
CONNECTIONS = _metric("rdzv_store_connections", "gauge", "Connections that are open now.")
CONNECTIONS_LIMIT = _metric("rdzv_store_connections_limit", "gauge", "Connections that are allowed at a time.")
PENDING = _metric(
    "rdzv_store_pending_connections", "gauge", "Connections that have sent no valid request yet, out of those."
)
LIMITS = _metric("rdzv_store_limit", "gauge", "What may be taken of the store, by the option that sets it.", "limit")
ACCEPTED = _metric("rdzv_store_connections_accepted", "counter", "Connections that were ever accepted.")
REQUESTS = _metric(
    "rdzv_store_requests",
    "counter",
    "Requests by type; framed are all of our own framing, also those of a type.",
    "type",
)
PUSHES = _metric("rdzv_store_pushes", "counter", "Frames that were pushed to sessions that watch.")
EVENTS = _metric("rdzv_store_events", "counter", "Changes of keys that were pushed in these frames.")
REFUSED = _metric(
    "rdzv_store_refused_clients",
    "counter",
    "Clients that were closed for what they did, and requests beyond a limit of a run.",
    "reason",
)
RECEIVED = _metric("rdzv_store_received_bytes", "counter", "Bytes from all clients.")
SENT = _metric("rdzv_store_sent_bytes", "counter", "Bytes to all clients.")
STORED = _metric("rdzv_store_stored_bytes", "gauge", "Keys and values that are kept, queues and runs included.")
STORED_LIMIT = _metric("rdzv_store_stored_limit_bytes", "gauge", "The most that one keyspace may keep.")
BUFFERED = _metric("rdzv_store_buffered_bytes", "gauge", "Half-sent requests and replies that were not read yet.")
BUSY = _metric("rdzv_store_busy_seconds", "counter", "Time awake of all event loops.")
CPU = _metric("rdzv_store_cpu_seconds", "counter", "Processor time of all event loops.")
STALLED = _metric("rdzv_store_stalled_seconds", "counter", "Time for which event loops stood still.")
KEYS = _metric("rdzv_store_keys", "gauge", "Keys of TCPStore clients.")
WAITED = _metric("rdzv_store_waited_keys", "gauge", "Keys that somebody waits for.")
WAITERS = _metric(
    "rdzv_store_waiters",
    "gauge",
    "Clients that wait for one of the 100 keys of a keyspace that were waited for longest, once for each.",
)
OLDEST = _metric("rdzv_store_oldest_wait_seconds", "gauge", "The age of the longest wait for a key; 0: nobody waits.")
RUNS = _metric("rdzv_store_runs", "gauge", "Runs (jobs) that have sessions here.")
FORGOTTEN = _metric("rdzv_store_runs_forgotten", "counter", "Runs that have gone, with all of their keys.")
SESSIONS = _metric("rdzv_store_sessions", "gauge", "Sessions of all runs: the nodes of jobs, and who looks at them.")
WATCHES = _metric("rdzv_store_watches", "gauge", "Watches of all sessions.")
STORE = (
    INFO, CONNECTIONS, CONNECTIONS_LIMIT, PENDING, LIMITS, ACCEPTED,
    REQUESTS, PUSHES, EVENTS, REFUSED, RECEIVED, SENT, STORED,
    STORED_LIMIT, BUFFERED, BUSY, CPU, STALLED, KEYS, WAITED, WAITERS, OLDEST, RUNS, FORGOTTEN, SESSIONS, WATCHES,
)  # fmt: skip


_MOST = (INFO, CONNECTIONS_LIMIT, LIMITS, STORED_LIMIT, OLDEST)
"""For these, two stores with the same purpose are reported by the larger value; all others add up."""


def read_stores(stores: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Reading]:
    """The values of ``STORE``, from the statistics of servers, each with the purpose that it serves."""
    found: dict[tuple[Metric, tuple[tuple[str, str], ...]], float] = {}
    for purpose, stats in stores:
        for metric, value, labels in _read(stats):
            key = metric, tuple({"store": purpose, **labels}.items())
            before = found.get(key, 0.0)
            found[key] = max(before, value) if metric in _MOST else before + value
    for (metric, told), value in found.items():
        yield reading(metric, value, **dict(told))


def _read(stats: Mapping[str, Any]) -> Iterator[tuple[Metric, float, Mapping[str, str]]]:
    """The values of one server, without the label that says which one it is."""
    connections, volume, keyspaces, runs = (stats[name] for name in ("connections", "bytes", "keyspaces", "runs"))
    waited = [each for keyspace in keyspaces for each in keyspace["waited"]]
    yield INFO, 1, {"version": str(stats["server"]["version"])}
    yield CONNECTIONS, connections["open"], {}
    yield CONNECTIONS_LIMIT, connections["limit"], {}
    yield PENDING, connections["pending"], {}
    for name, limit in stats["limits"].items():
        yield LIMITS, limit, {"limit": name}
    yield ACCEPTED, connections["accepted"], {}
    for name, count in stats["requests"].items():
        yield REQUESTS, count, {"type": name}
    yield PUSHES, stats["pushes"], {}
    yield EVENTS, stats["events"], {}
    for reason, count in stats["refused"].items():
        yield REFUSED, count, {"reason": reason}
    yield RECEIVED, volume["received"], {}
    yield SENT, volume["sent"], {}
    yield STORED, volume["stored"], {}
    yield STORED_LIMIT, volume["stored_limit"], {}
    yield BUFFERED, volume["buffered"], {}
    for metric, name in ((BUSY, "busy_s"), (CPU, "cpu_s"), (STALLED, "stalled_s")):
        yield metric, sum(loop[name] for loop in stats["loops"]), {}
    yield KEYS, sum(each["keys"] for each in keyspaces), {}
    yield WAITED, sum(each["waited_keys"] for each in keyspaces), {}
    yield WAITERS, sum(each["waiters"] for each in waited), {}
    yield OLDEST, max((each["oldest_s"] for each in waited), default=0.0), {}
    yield RUNS, len(runs), {}
    yield FORGOTTEN, stats["runs_forgotten"], {}
    yield SESSIONS, sum(each["sessions"] for each in runs), {}
    yield WATCHES, sum(each["watches"] for each in runs), {}
