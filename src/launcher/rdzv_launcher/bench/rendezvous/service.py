"""What the service of a run says about itself, read before and after each phase, as far as it says anything."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rdzv_launcher.bench.method.readings import exact_cpu_seconds
from rdzv_launcher.bench.processes.hosts import Machine, inside
from rdzv_plugins.endpoints import parse_endpoint
from rdzv_plugins.testing.harness import ServiceCounts


@dataclass(frozen=True)
class Served:
    """What a service has done since it started."""

    requests: Mapping[str, int] | None = None
    """What it has been asked, by name, without signs of life; None if it does not say."""
    signs: int = 0
    """The number of signs of life that it received."""
    syncs: int = 0
    """How often it made sure that what it wrote is on disk."""
    sync_s: float = 0.0
    """How long that took, in seconds."""
    cpu_s: float | None = None
    """CPU time of serving; None if that cannot be told from the rest."""
    apart_s: float | None = 0.0
    """CPU time of processes that hold no nodes, but serve them; None if unknown."""


class MeasuredService:
    """How to ask the service.

    ``task`` has ``probe`` (its harness's, or empty), ``endpoint``, ``machine`` (from where), ``pids`` and ``apart``.
    ``apart``: it is in none of the nodes' processes; ``pids``: its own, as far as they are known here.
    """

    def __init__(self, task: Mapping[str, Any]) -> None:
        self._probe: str = task["probe"]
        self._endpoint = parse_endpoint(task["endpoint"], None) if self._probe else None
        self._machine = Machine(**task["machine"])
        self._pids: list[int] = task["pids"]
        self._unseen = bool(task["apart"] and not self._pids)

    def served(self) -> Served:
        """What it has done so far. Raises ``OSError`` and ``RdzvError`` if it should answer and does not."""
        pids_s = sum(map(exact_cpu_seconds, self._pids))  # before it is asked for figures, which costs it some
        if not self._probe:
            return Served(cpu_s=pids_s if self._pids else None, apart_s=None if self._unseen else pids_s)
        module, _, function = self._probe.partition(":")
        with inside(self._machine):
            counts: ServiceCounts = getattr(importlib.import_module(module), function)(self._endpoint)
        cpu_s = pids_s if counts.cpu_s is None else counts.cpu_s
        return Served(
            counts.requests, counts.signs, counts.syncs, counts.sync_s, cpu_s, cpu_s if self._unseen else pids_s
        )
