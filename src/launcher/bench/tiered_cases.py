"""What ``rdzv bench tiered`` lets the ranks do, and what it reads around it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from launcher.bench.store_cases import load_module
from launcher.bench.tiered_network import Network
from launcher.bench.tiered_parts import Parts
from rdzv_plugins.errors import RdzvError

if TYPE_CHECKING:
    from launcher.bench._load import Figures, Load

ROUTES = ("direct", "tiered", "tiered-unix")
INIT = ("enrol", "gloo")
"""The phases of gloo's start."""
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
    fanout: int = 0

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node


@dataclass(frozen=True)
class Way:
    """How the ranks reach the root."""

    route: str
    delay_s: float = 0.0
    """Of a round trip between a node and the root; none within a node."""

    @property
    def name(self) -> str:
        return f"{self.route}, {self.delay_s * 1000:g} ms" if self.delay_s else self.route


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


@dataclass
class Sample:
    """One run of a case by one way."""

    phases: dict[str, Phase] = field(default_factory=dict)
    proxies: dict[str, Any] = field(default_factory=dict)
    """What the proxies have counted, in all phases together."""
    unfinished: str = ""

    @property
    def wall_s(self) -> float:
        """Of all phases together."""
        return sum(phase.wall_s for phase in self.phases.values())


def measure(case: Case, way: Way, network: Network) -> Sample:
    """One run, with processes of its own. Raises ``RdzvError`` for a wrong reply or a process that ends."""
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
            sample.unfinished = str(error)
        except module.LoadError as error:
            raise RdzvError(f"{way.name}, {case.ranks} ranks on {case.nodes} nodes: {error}") from None
    return sample


def _phase(name: str, case: Case, way: Way, parts: Parts, load: Load) -> Phase:
    before, cpu = parts.root.ask({}), parts.cpu_seconds()
    if name == "connect":
        if way.route != "direct":
            parts.open_proxies(unix=way.route == "tiered-unix", fanout=case.fanout)
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
