"""What ``rdzv bench tiered`` lets the ranks do, and what it reads around it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

from launcher.bench.store_cases import load_module
from launcher.bench.tiered_network import Network
from launcher.bench.tiered_parts import Parts
from launcher.bench.turns import DidNotFinish
from rdzv_plugins.errors import RdzvError

if TYPE_CHECKING:
    from launcher.bench._load import Figures, Load

ROUTES = ("direct", "tiered", "tiered-unix")
STAGES = {
    "connect": ("connect",),
    "gloo init": ("enrol", "gloo"),
    "NCCL init": ("enrol", "nccl"),
    "barrier": ("store_barrier",),
}
"""What is told of a run: a stage is of phases, which are measured."""
_TRUNK = ("attach", "forward", "follow", "unfollow", "arrive", "give_back", "recalled", "report")
_NOT_ASKED = ("report",)
"""What a proxy says of itself every few seconds, which no worker has asked for."""
_WINDOW = 256
_SOURCES = [f"127.0.0.{number}" for number in range(1, 17)]
"""On loopback: finding a free port is slow for a kernel that has given most of an address away."""


@dataclass(frozen=True)
class Case:
    """Ranks on nodes, and what they do one after the other."""

    nodes: int
    per_node: int
    phases: tuple[str, ...]
    limit_s: float

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    @property
    def name(self) -> str:
        """In a few words."""
        return f"{self.nodes} nodes x {self.per_node} ranks"


@dataclass(frozen=True)
class Way:
    """How the ranks reach the root."""

    route: str
    delay_s: float = 0.0
    """Of a round trip between a node and the root; none within a node."""
    fanout: int = 0
    """Proxies at the root, which those of the other nodes dial; 0: all dial the root."""

    @property
    def target(self) -> str:
        """Its name among the ways with the same delay."""
        return f"{self.route}, fanout={self.fanout}" if self.fanout else self.route

    @property
    def delay(self) -> str:
        """In words; empty for none."""
        return f"{self.delay_s * 1000:g} ms" if self.delay_s else ""

    @property
    def name(self) -> str:
        """Among all ways."""
        return f"{self.target}, {self.delay}" if self.delay else self.target


@dataclass
class Phase:
    """The figures of one phase."""

    wall_s: float
    asked: int
    """Requests of the ranks."""
    p50_us: float
    """Of the ranks' round trips, without those waits that other ranks end."""
    root: dict[str, int]
    """Requests at the root, by name."""
    root_received: int
    root_sent: int
    """Bytes."""
    connections: int
    """At the root, afterwards."""
    cpu_s: dict[str, float]
    """Of root, proxies, relay and clients."""

    @property
    def root_requests(self) -> int:
        return sum(self.root.values())

    @property
    def root_bytes(self) -> int:
        """Received and sent."""
        return self.root_received + self.root_sent

    def __add__(self, later: Phase) -> Phase:
        """Both, one after the other."""
        return Phase(
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
class Sample:
    """One run of a case by one way."""

    phases: dict[str, Phase] = field(default_factory=dict)
    proxies: dict[str, Any] = field(default_factory=dict)
    """What the proxies have counted, in all phases together."""

    @property
    def wall_s(self) -> float:
        """Of all phases together."""
        return sum(phase.wall_s for phase in self.phases.values())

    def stage(self, name: str) -> Phase | None:
        """The phases of a stage together; None where it was not asked for."""
        phases = [self.phases[phase] for phase in STAGES[name] if phase in self.phases]
        return reduce(add, phases) if len(phases) == len(STAGES[name]) else None


def measure(case: Case, way: Way, network: Network) -> Sample:
    """One run, with processes of its own.

    Raises ``DidNotFinish``, and ``RdzvError`` for a wrong reply or a process that ends.
    """
    sample = Sample()
    module = load_module()
    with ExitStack() as running:
        parts = running.enter_context(
            Parts(network, network.nodes[: case.nodes], per_node=case.per_node, delay_s=way.delay_s)
        )
        load = running.enter_context(_load())
        try:
            for name in ("connect", *case.phases):
                sample.phases[name] = _phase(name, case, way, parts, load)
            sample.proxies = parts.proxies_counted()
        except module.TimeLimit as error:
            raise DidNotFinish(str(error)) from None
        except module.LoadError as error:
            raise RdzvError(f"{way.name}, {case.ranks} ranks on {case.nodes} nodes: {error}") from None
    return sample


def _phase(name: str, case: Case, way: Way, parts: Parts, load: Load) -> Phase:
    before, cpu = parts.root.ask({}), parts.cpu_seconds()
    if name == "connect":
        if way.route != "direct":
            parts.open_proxies(unix=way.route == "tiered-unix", fanout=way.fanout)
            cpu = parts.cpu_seconds()  # that of starting their processes is not what a proxy costs
        own = time.process_time()
        figures = _connect(case, parts, load)
    else:
        own = time.process_time()
        figures = load.run(name, prefix="", rounds=1, gets=case.ranks, limit_s=case.limit_s)
    own = time.process_time() - own
    now = parts.cpu_seconds()
    after = parts.root.ask({})
    return Phase(
        wall_s=figures.seconds,
        asked=figures.requests,
        p50_us=figures.p50_us,
        root=new_requests(after["requests"], before["requests"]),
        root_received=after["bytes"]["received"] - before["bytes"]["received"],
        root_sent=after["bytes"]["sent"] - before["bytes"]["sent"],
        connections=after["connections"]["open"],
        cpu_s={who: now[who] - cpu[who] for who in now} | {"clients": own},
    )


def _connect(case: Case, parts: Parts, load: Load) -> Figures:
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
    """Those of the trunks where there are any: what they forward is counted once more under its own name."""
    new = {name: count - before.get(name, 0) for name, count in now.items()}
    names = _TRUNK if any(new.get(name) for name in _TRUNK) else [name for name in new if name != "framed"]
    return {name: new[name] for name in names if new.get(name) and name not in _NOT_ASKED}


@contextmanager
def _load() -> Iterator[Load]:
    load = load_module().Load("127.0.0.1", 1)  # each client has a place of its own
    try:
        yield load
    finally:
        load.close()
