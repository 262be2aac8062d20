"""What one run of ``rdzv bench rendezvous`` finds out, phase by phase, and what its nodes said on the way."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from rdzv_launcher.bench.rendezvous.service import Served
from rdzv_plugins.testing.counts import LEAD


@dataclass
class RendezvousPhase:
    """The figures from the first call, or the loss, to the last node's answer."""

    seconds: float
    known_s: float | None
    """The time from the loss until the service reported it, if that can be asked."""
    per_node: dict[str, float] | None
    """Requests of a plain node, which is neither first nor leading: the median; None if unknown."""
    asked: dict[str, float] | None
    """Requests of all nodes together."""
    served: dict[str, float] | None
    """What the service itself has counted."""
    nodes_cpu_s: float
    """CPU time of the processes with nodes."""
    first_cpu_s: float | None
    """CPU time of the first node's process, which includes the service if it serves that; None if others share it."""
    service_cpu_s: float | None
    """CPU time of serving, wherever that happens."""
    apart_cpu_s: float | None
    """CPU time of a service that is in none of those processes; None if unknown."""
    syncs: int
    sync_s: float


@dataclass
class RendezvousSample:
    """The outcome of one run."""

    join: RendezvousPhase | None = None
    loss: RendezvousPhase | None = None
    close: RendezvousPhase | None = None
    """One node says that it goes, if the service did not hear of the loss at once."""
    idle: dict[str, Any] | None = None
    """``seconds``; ``asked`` and ``served`` in that time, and ``signs`` of life; or only that it was ``disturbed``."""
    memory_mib: float = 0.0
    """Private memory of the nodes' processes after the join, less what they had before the handlers were made."""
    unfinished: str = ""


@dataclass
class NodesState:
    """What is known at one moment."""

    nodes: dict[int, dict[str, Any]]
    joins: int
    """How many joins there have been so far."""
    known_at: float | None
    cpu_s: dict[int, tuple[float, float]]
    """CPU time by process: before it said all this, and after."""
    memory_mib: float
    service: Served

    def asked(self, numbers: Collection[int]) -> dict[str, float] | None:
        """How many requests of each kind these nodes have sent."""
        if any(self.nodes[number]["asked"] is None for number in numbers):
            return None
        total: Counter[str] = Counter()
        for number in numbers:
            total.update(self.nodes[number]["asked"])
        return dict(total)

    def cpu_since(self, before: NodesState, only: int | None = None) -> float:
        """CPU time since then of the processes that still live, or of one of them."""
        return sum(now - before.cpu_s[pid][1] for pid, (now, _) in self.cpu_s.items() if only in (None, pid))


def is_plain(node: Mapping[str, Any]) -> bool:
    """Whether it neither serves nor decides; the node with number 0 may serve the endpoint."""
    return node["number"] > 0 and node["rank"] > 0 and not node["leads"]


def wrong_places(nodes: Mapping[int, Mapping[str, Any]]) -> str:
    """What is wrong with the places of all nodes of a round, whose numbers are the keys; empty if they are right."""
    ranks = Counter(node["rank"] for node in nodes.values())
    for number, node in nodes.items():
        if not 0 <= node["rank"] < len(nodes):
            return f"node {number} has rank {node['rank']} in a round of {len(nodes)} nodes"
        if ranks[node["rank"]] > 1:
            return f"rank {node['rank']} is that of {ranks[node['rank']]} nodes, node {number} is one of them"
        if node["world"] != len(nodes):
            return f"node {number} was told a world of {node['world']} nodes, of which there are {len(nodes)}"
    rounds = {node["round"] for node in nodes.values() if "round" in node}
    return f"the nodes are in rounds {', '.join(map(str, sorted(rounds)))}" if len(rounds) > 1 else ""


def grown(now: Mapping[str, float] | None, before: Mapping[str, float] | None) -> dict[str, float] | None:
    """What was added, by name; None if nobody counts."""
    return None if now is None else new(now, before or {})


def per_node(
    nodes: Mapping[int, Mapping[str, Any]], before: Mapping[int, Mapping[str, Any]]
) -> dict[str, float] | None:
    """The median of each request over the plain nodes, or over all if none is plain."""
    if any(node["asked"] is None for node in nodes.values()):
        return None
    plain = [number for number, node in nodes.items() if is_plain(node)] or [*nodes]
    added = [new(nodes[number]["asked"], before[number]["asked"]) for number in plain]
    names = sorted({name for each in added for name in each} - {LEAD})
    medians = {name: float(statistics.median_low(each.get(name, 0) for each in added)) for name in names}
    return {name: count for name, count in medians.items() if count}


def new(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """The counts that have grown since the last look, by name."""
    added = {name: count - before.get(name, 0) for name, count in now.items()}
    return {name: count for name, count in added.items() if count}
