"""What ``rdzv bench tiered`` lets the ranks do, and what it reads around it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdzv_launcher.bench.processes.closed import conf_of
from rdzv_launcher.bench.processes.hosts import Network
from rdzv_launcher.bench.processes.load import clients
from rdzv_launcher.bench.tiered.parts import TieredParts

if TYPE_CHECKING:
    from rdzv_launcher.bench._load import Figures, Load

ROUTES = ("direct", "tiered", "tiered-unix", "echo")
STAGES = {
    "connect": ("connect",),
    "gloo init": ("enrol", "gloo"),
    "NCCL init": ("enrol", "nccl"),
    "barrier": ("store_barrier",),
}
"""What is reported about a run: a stage consists of phases, which are measured."""
_TRUNK = ("attach", "forward", "follow", "unfollow", "arrive", "give_back", "recalled", "report")
_NOT_ASKED = ("report",)
"""What a proxy says about itself every few seconds, which no worker has asked for."""
_WINDOW = 256
_SOURCES = [f"127.0.0.{number}" for number in range(1, 17)]
"""Addresses on loopback: finding a free port is slow for a kernel that has given most of one address away."""


@dataclass(frozen=True)
class TieredCase:
    """Ranks on nodes, and what they do one after another."""

    nodes: int
    per_node: int
    phases: tuple[str, ...]
    limit_s: float

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    @property
    def name(self) -> str:
        """The case in a few words."""
        return f"{self.nodes} nodes x {self.per_node} ranks"


@dataclass(frozen=True)
class Way:
    """How the ranks reach the root."""

    route: str
    """"echo": every node has a bare loop in place of its proxy, see ``tiered/figures.py``."""
    delay_s: float = 0.0
    """How much longer a round trip between a node and the root takes; there is no delay within a node."""
    fanout: int = 0
    """The number of proxies at the root, which those of the other nodes dial; 0: all dial the root."""
    closed: str = ""
    """How root and proxies keep strangers out, as in ``closed.WAYS``; empty: not at all."""

    @property
    def target(self) -> str:
        """Its name among the ways with the same delay."""
        more = f"fanout={self.fanout}" if self.fanout else self.closed
        return f"{self.route}, {more}" if more else self.route

    @property
    def reference(self) -> bool:
        """Whether others are compared with it."""
        return not self.route.startswith("tiered")

    @property
    def delay(self) -> str:
        """The delay in words; empty for none."""
        return f"{self.delay_s * 1000:g} ms" if self.delay_s else ""

    @property
    def name(self) -> str:
        """The name of this way to connect, in figures and charts."""
        return f"{self.target}, {self.delay}" if self.delay else self.target


@dataclass
class TieredPhase:
    """The figures of one phase."""

    wall_s: float
    asked: int
    """The number of requests from the ranks."""
    p50_us: float
    """The median of the ranks' round trips, without those waits that other ranks end."""
    root: dict[str, int]
    """Requests at the root, by name."""
    root_received: int
    root_sent: int
    """The number of bytes that the root sent."""
    connections: int
    """The number of connections at the root, afterwards."""
    cpu_s: dict[str, float]
    """CPU time of root, proxies, relay and clients."""

    @property
    def root_requests(self) -> int:
        return sum(self.root.values())

    @property
    def root_bytes(self) -> int:
        """The bytes that the root received and sent."""
        return self.root_received + self.root_sent

    def __add__(self, later: TieredPhase) -> TieredPhase:
        """The figures of both phases, one after the other."""
        return TieredPhase(
            wall_s=self.wall_s + later.wall_s,
            asked=self.asked + later.asked,
            p50_us=later.p50_us,
            root={name: self.root.get(name, 0) + later.root.get(name, 0) for name in {**self.root, **later.root}},
            root_received=self.root_received + later.root_received,
            root_sent=self.root_sent + later.root_sent,
            connections=later.connections,
            cpu_s={who: seconds + later.cpu_s[who] for who, seconds in self.cpu_s.items()},
        )


@dataclass
class TieredSample:
    """One run of a case by one way."""

    phases: dict[str, TieredPhase] = field(default_factory=dict)
    proxies: dict[str, Any] = field(default_factory=dict)
    """What the proxies have counted, in all phases together."""

    @property
    def wall_s(self) -> float:
        """The time of all phases together."""
        return sum(phase.wall_s for phase in self.phases.values())

    def stage(self, name: str) -> TieredPhase | None:
        """The phases of a stage together; None if it was not asked for."""
        phases = [self.phases[phase] for phase in STAGES[name] if phase in self.phases]
        return reduce(add, phases) if len(phases) == len(STAGES[name]) else None


def measure(case: TieredCase, way: Way, network: Network) -> TieredSample:
    """One run, with its own processes.

    Raises ``DidNotFinish``, and ``RdzvError`` for a wrong reply or a process that ends.
    """
    sample = TieredSample()
    who = f"{way.name}, {case.ranks} ranks on {case.nodes} nodes"
    with ExitStack() as running:
        nodes = network.nodes[: case.nodes]
        conf: Mapping[str, str] = {}
        if way.closed:
            files = Path(running.enter_context(tempfile.TemporaryDirectory()))
            conf = conf_of(way.closed, files, [network.root.address])
        parts = running.enter_context(
            TieredParts(network, nodes, per_node=case.per_node, delay_s=way.delay_s, conf=conf)
        )
        load = running.enter_context(clients(who, echo=way.route == "echo"))
        for name in ("connect", *case.phases):
            sample.phases[name] = _phase(name, case, way, parts, load)
        sample.proxies = parts.proxies_counted()
    return sample


def _phase(name: str, case: TieredCase, way: Way, parts: TieredParts, load: Load) -> TieredPhase:
    if name != "connect":
        return read_phase(parts, lambda: load.run(name, prefix="", rounds=1, gets=case.ranks, limit_s=case.limit_s))

    def open_proxies() -> None:
        if way.route != "direct":
            parts.open_proxies(unix=way.route == "tiered-unix", fanout=way.fanout, echo=way.route == "echo")

    return read_phase(parts, lambda: _connect(case, parts, load), prepare=open_proxies)


def read_phase(
    parts: TieredParts, act: Callable[[], Figures], prepare: Callable[[], None] = lambda: None
) -> TieredPhase:
    """What ``act``, a phase of the load, costs. Requests of ``prepare`` before it are counted, but not its time."""
    before = parts.root.question()
    prepare()
    cpu, own = parts.cpu_seconds(), time.process_time()
    figures = act()
    own = time.process_time() - own
    now, after = parts.cpu_seconds(), parts.root.question()
    return TieredPhase(
        wall_s=figures.seconds,
        asked=figures.requests,
        p50_us=figures.p50_us,
        root=new_requests(after["requests"], before["requests"]),
        root_received=after["bytes"]["received"] - before["bytes"]["received"],
        root_sent=after["bytes"]["sent"] - before["bytes"]["sent"],
        connections=after["connections"]["open"],
        cpu_s={who: now[who] - cpu[who] for who in now} | {"clients": own},
    )


def _connect(case: TieredCase, parts: TieredParts, load: Load) -> Figures:
    with ExitStack() as opened:
        places = []
        for where, network in parts.places:
            descriptor = -1
            if network:
                descriptor = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
                opened.callback(os.close, descriptor)
            places.append((where, descriptor))
        return load.connect(
            case.ranks,
            window=_WINDOW,
            sources=_SOURCES if not parts.apart and not parts.places[0][0].startswith("unix:") else [],
            storm=False,
            limit_s=case.limit_s,
            places=places,
        )


def new_requests(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """What was asked since; only of trunks if there are any, as what they forward is counted again by its name."""
    new = {name: count - before.get(name, 0) for name, count in now.items()}
    names = _TRUNK if any(new.get(name) for name in _TRUNK) else [name for name in new if name != "framed"]
    return {name: new[name] for name in names if new.get(name) and name not in _NOT_ASKED}
