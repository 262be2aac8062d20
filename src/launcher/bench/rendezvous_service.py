"""What the service of a run says of itself, read before and after each phase; as far as it says anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.bench.etcd_server import ask_metrics
from launcher.bench.measure import exact_cpu_seconds
from launcher.bench.tiered_network import Machine, inside
from rdzv_plugins.endpoints import parse_endpoint

NATIVE, ETCD = "native", "etcd"
_ANSWER_S = 60.0


@dataclass(frozen=True)
class Counts:
    """Since it started."""

    requests: dict[str, int] | None = None
    """What it has been asked, by name, signs of life left out; None where it does not tell."""
    signs: int = 0
    """Of life."""
    syncs: int = 0
    """How often it made sure that what it wrote is on disk."""
    sync_s: float = 0.0
    """And how long that took."""
    cpu_s: float | None = None
    """Processor time that serving took; None where that cannot be told from the rest."""
    apart_s: float | None = 0.0
    """Processor time of processes that hold no nodes, but serve them; None where nobody tells."""


class Service:
    """How to ask it. ``task``: ``probe`` (how, or empty), ``endpoint``, ``machine`` (where from), ``pids``, ``apart``.

    ``apart``: it is in none of the nodes' processes; ``pids``: its own, as far as they are known here.
    """

    def __init__(self, task: Mapping[str, Any]) -> None:
        self._probe: str = task["probe"]
        self._endpoint = parse_endpoint(task["endpoint"], None) if self._probe else None
        self._machine = Machine(**task["machine"])
        self._pids: list[int] = task["pids"]
        self._unseen = bool(task["apart"] and not self._pids)

    def counts(self) -> Counts:
        """Raises ``OSError`` and ``RdzvError`` where it should answer and does not."""
        cpu_s = sum(map(exact_cpu_seconds, self._pids))  # before it is asked for figures, which costs it some
        if self._probe == NATIVE:
            return self._native(cpu_s)
        if self._probe == ETCD:
            assert self._endpoint is not None, "it is known where there is a probe"
            metrics = ask_metrics(self._endpoint.port)
            return Counts(dict(metrics.requests), metrics.keep_alives, metrics.syncs, metrics.sync_s, cpu_s, cpu_s)
        return Counts(cpu_s=cpu_s if self._pids else None, apart_s=None if self._unseen else cpu_s)

    def _native(self, pids_s: float) -> Counts:
        from rdzv_plugins.kvstore.framing import ask_statistics

        assert self._endpoint is not None, "it is known where there is a probe"
        with inside(self._machine):
            statistics = ask_statistics(self._endpoint, _ANSWER_S)
        requests = {name: count for name, count in statistics["requests"].items() if count and name != "framed"}
        cpu_s = float(sum(loop["cpu_s"] for loop in statistics["loops"]))
        return Counts(
            signs=requests.pop("keep_alive", 0),
            requests=requests,
            cpu_s=cpu_s,
            apart_s=cpu_s if self._unseen else pids_s,
        )
