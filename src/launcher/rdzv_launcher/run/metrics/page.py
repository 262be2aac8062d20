"""The answer to a scrape, in the text form of OpenMetrics, written by prometheus_client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rdzv_launcher.run.metrics.declared import Metric, Reading
from rdzv_plugins.errors import MissingDependency
from rdzv_plugins.plain_text import printable

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
