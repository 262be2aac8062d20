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
            f"metrics need prometheus_client, which cannot be imported: {error}",
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


_Values = Iterable[tuple[float, Mapping[str, str]]]
"""Values of one server, each with its labels but the one that says which server it is."""


def _by(label: str, values: Mapping[str, float]) -> _Values:
    return [(value, {label: name}) for name, value in values.items()]


def _sum(items: Iterable[Mapping[str, float]], name: str) -> float:
    return sum(each[name] for each in items)


def _waited(stats: Mapping[str, Any]) -> list[Mapping[str, float]]:
    return [each for keyspace in stats["keyspaces"] for each in keyspace["waited"]]


_Read = Callable[[Mapping[str, Any]], "float | _Values"]
_DECLARED: tuple[tuple[str, Literal["counter", "gauge", "info"], str, tuple[str, ...], _Read], ...] = (
    ("", "info", "The version of rdzv-plugins that serves.", ("version",),
     lambda s: [(1, {"version": str(s["server"]["version"])})]),
    ("_connections", "gauge", "Connections that are open now.", (), lambda s: s["connections"]["open"]),
    ("_connections_limit", "gauge", "Connections that are allowed at a time.", (),
     lambda s: s["connections"]["limit"]),
    ("_pending_connections", "gauge", "Connections that have sent no valid request yet, out of those.", (),
     lambda s: s["connections"]["pending"]),
    ("_limit", "gauge", "What may be taken of the store, by the option that sets it.", ("limit",),
     lambda s: _by("limit", s["limits"])),
    ("_connections_accepted", "counter", "Connections that were ever accepted.", (),
     lambda s: s["connections"]["accepted"]),
    ("_requests", "counter", "Requests by type; framed are all of our own framing, also those of a type.", ("type",),
     lambda s: _by("type", s["requests"])),
    ("_pushes", "counter", "Frames that were pushed to sessions that watch.", (), lambda s: s["pushes"]),
    ("_events", "counter", "Changes of keys that were pushed in these frames.", (), lambda s: s["events"]),
    ("_refused_clients", "counter",
     "Clients that were closed for what they did, and requests beyond a limit of a run.", ("reason",),
     lambda s: _by("reason", s["refused"])),
    ("_received_bytes", "counter", "Bytes from all clients.", (), lambda s: s["bytes"]["received"]),
    ("_sent_bytes", "counter", "Bytes to all clients.", (), lambda s: s["bytes"]["sent"]),
    ("_stored_bytes", "gauge", "Keys and values that are kept, queues and runs included.", (),
     lambda s: s["bytes"]["stored"]),
    ("_stored_limit_bytes", "gauge", "The most that one keyspace may keep.", (), lambda s: s["bytes"]["stored_limit"]),
    ("_buffered_bytes", "gauge", "Half-sent requests and replies that were not read yet.", (),
     lambda s: s["bytes"]["buffered"]),
    ("_busy_seconds", "counter", "Time awake of all event loops.", (), lambda s: _sum(s["loops"], "busy_s")),
    ("_cpu_seconds", "counter", "Processor time of all event loops.", (), lambda s: _sum(s["loops"], "cpu_s")),
    ("_stalled_seconds", "counter", "Time for which event loops stood still.", (),
     lambda s: _sum(s["loops"], "stalled_s")),
    ("_keys", "gauge", "Keys of TCPStore clients.", (), lambda s: _sum(s["keyspaces"], "keys")),
    ("_waited_keys", "gauge", "Keys that somebody waits for.", (), lambda s: _sum(s["keyspaces"], "waited_keys")),
    ("_waiters", "gauge",
     "Clients that wait for one of the 100 keys of a keyspace that were waited for longest, once for each.", (),
     lambda s: _sum(_waited(s), "waiters")),
    ("_oldest_wait_seconds", "gauge", "The age of the longest wait for a key; 0: nobody waits.", (),
     lambda s: max((each["oldest_s"] for each in _waited(s)), default=0.0)),
    ("_runs", "gauge", "Runs (jobs) that have sessions here.", (), lambda s: len(s["runs"])),
    ("_runs_forgotten", "counter", "Runs that have gone, with all of their keys.", (), lambda s: s["runs_forgotten"]),
    ("_sessions", "gauge", "Sessions of all runs: the nodes of jobs, and who looks at them.", (),
     lambda s: _sum(s["runs"], "sessions")),
    ("_watches", "gauge", "Watches of all sessions.", (), lambda s: _sum(s["runs"], "watches")),
)  # fmt: skip
_READ = {
    Metric(f"rdzv_store{name}", kind, what, ("store", *labels)): read for name, kind, what, labels, read in _DECLARED
}
STORE = tuple(_READ)
_MOST = {
    f"rdzv_store{name}" for name in ("", "_connections_limit", "_limit", "_stored_limit_bytes", "_oldest_wait_seconds")
}
"""For these, two stores with the same purpose are reported by the larger value; all others add up."""


def read_stores(stores: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Reading]:
    """The values of ``STORE``, from the statistics of servers, each with the purpose that it serves."""
    found: dict[tuple[Metric, tuple[tuple[str, str], ...]], float] = {}
    for purpose, stats in stores:
        for metric, read in _READ.items():
            values = read(stats)
            for value, labels in [(values, {})] if isinstance(values, int | float) else values:
                key = metric, tuple({"store": purpose, **labels}.items())
                before = found.get(key, 0.0)
                found[key] = max(before, value) if metric.name in _MOST else before + value
    for (metric, told), value in found.items():
        yield reading(metric, value, **dict(told))
