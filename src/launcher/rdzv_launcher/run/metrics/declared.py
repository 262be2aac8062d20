"""What a metric is: its name, kind and help. The reference page and the answer to a scrape are made from these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec import Struct


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
