"""A tree of proxies in ``rdzv bench tiered``: thousands of simulated ones, below real ones, below a real root."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from rdzv_launcher.bench.method.points import Point
from rdzv_launcher.bench.method.turns import DidNotFinish, Turns
from rdzv_launcher.bench.processes.hosts import Network
from rdzv_launcher.bench.processes.load import clients, proxies
from rdzv_launcher.bench.store.servers import StoreProcess, StoreTarget
from rdzv_launcher.bench.tiered.cases import TieredPhase, TieredSample, Way, read_phase
from rdzv_launcher.bench.tiered.figures import FIGURES
from rdzv_launcher.bench.tiered.goals import Goal
from rdzv_launcher.bench.tiered.parts import FILES_PER_PROCESS, TieredParts

if TYPE_CHECKING:
    from rdzv_launcher.bench._load import Figures

TORCH = "torch"
BARRIERS = 5
_TITLES = {"connect": "connect", "add": "ADD", "barrier": f"one of {BARRIERS} barriers"}
PHASES = tuple(_TITLES)
CAPTION = f"""\
  simulated   proxies that the load generator speaks for: as light as a socket, they attach to the root, or to the real
              proxies of a second tier (fanout=K), and say what proxies say for so many ranks. Each ADDs what its ranks
              add, and arrives with them at {BARRIERS} barriers one after the other; the figures are of one. Sums,
              counters, and that nobody comes out before all have come in, are checked. direct and torch: every rank
              connects to our server, or to torch's, and does it for itself"""
_MOST_BARRIER_S, _FROM_RANKS = 0.5, 16_384
_WINDOW = 256
_SOURCES = [f"127.0.0.{number}" for number in range(1, 17)]


@dataclass(frozen=True)
class TreeCase:
    """Simulated proxies, and the ranks behind each."""

    proxies: int
    per_proxy: int
    limit_s: float

    @property
    def ranks(self) -> int:
        return self.proxies * self.per_proxy

    @property
    def name(self) -> str:
        """The case in a few words."""
        return f"{self.proxies} simulated proxies x {self.per_proxy} ranks"


def ways(fanout: int) -> list[Way]:
    """All ways to the root: each rank by itself, by torch's server or ours, and through proxies in one tier or two."""
    return [Way(TORCH), Way("direct"), Way("tiered"), *([Way("tiered", fanout=fanout)] if fanout else [])]


def measure_tree(case: TreeCase, way: Way, prefix: list[str]) -> TieredSample:
    """One run, with its own processes. ``prefix``: what goes before the command of torch's server.

    Raises ``DidNotFinish``, and ``RdzvError`` for a wrong reply or a process that ends.
    """
    who = f"{way.name}, {case.name}"
    if way.reference and case.ranks > FILES_PER_PROCESS:
        raise DidNotFinish(f"{case.ranks} connections are more than one process may have")
    with ExitStack() as running:
        if way.route == TORCH:
            server = running.enter_context(StoreProcess(StoreTarget("libuv"), prefix))
            server.start()
            return _measure_ranks(who, case, server.port, lambda act: _read_torch(server, act))
        network = running.enter_context(Network(way.fanout, namespaces=False))
        children = -(-case.proxies // way.fanout) if way.fanout else 0
        parts = running.enter_context(TieredParts(network, network.nodes, per_node=children, delay_s=0.0))
        if way.route == "direct":
            return _measure_ranks(who, case, parts.root.port, lambda act: read_phase(parts, act))
        if way.fanout:
            parts.open_proxies(unix=False, fanout=way.fanout)
        host, port = parts.entrance
        roots = [where for where, _ in parts.places] or [f"{host}:{port}"]
        simulated = running.enter_context(proxies(who, roots, case.proxies, case.per_proxy))
        limit_s = case.limit_s
        sample = TieredSample()
        sample.phases["connect"] = read_phase(
            parts, lambda: simulated.attach(window=_WINDOW, sources=_SOURCES, limit_s=limit_s)
        )
        sample.phases["add"] = read_phase(parts, lambda: simulated.add("enrol", limit_s=limit_s))
        sample.phases["barrier"] = _of_one(
            read_phase(parts, lambda: simulated.barrier("barrier", rounds=BARRIERS, limit_s=limit_s))
        )
        sample.proxies = parts.proxies_counted()
        return sample


def _measure_ranks(
    who: str, case: TreeCase, port: int, read: Callable[[Callable[[], Figures]], TieredPhase]
) -> TieredSample:
    """The same measurement, with each rank by itself."""
    sample = TieredSample()
    with clients(who, port) as load:
        sample.phases["connect"] = read(
            lambda: load.connect(case.ranks, window=_WINDOW, sources=_SOURCES, storm=False, limit_s=case.limit_s)
        )
        sample.phases["add"] = read(lambda: load.run("enrol", prefix="", rounds=1, gets=0, limit_s=case.limit_s))
        sample.phases["barrier"] = _of_one(
            read(lambda: load.run("store_barrier", prefix="", rounds=BARRIERS, gets=0, limit_s=case.limit_s))
        )
    return sample


def _read_torch(server: StoreProcess, act: Callable[[], Figures]) -> TieredPhase:
    """What torch's server shows about a phase: nothing but its CPU time. It is asked what the ranks ask."""
    cpu, own = server.settled_cpu_seconds(), time.process_time()
    figures = act()
    own = time.process_time() - own
    cpu = server.settled_cpu_seconds() - cpu
    return TieredPhase(
        wall_s=figures.seconds,
        asked=figures.requests,
        p50_us=figures.p50_us,
        root={"asked": figures.requests},
        root_received=0,
        root_sent=0,
        connections=0,
        cpu_s={"root": cpu, "proxies": 0.0, "relay": 0.0, "clients": own},
    )


def _of_one(barriers: TieredPhase) -> TieredPhase:
    """The figures of one barrier; counts stay those of all."""
    return replace(
        barriers,
        wall_s=barriers.wall_s / BARRIERS,
        cpu_s={who: seconds / BARRIERS for who, seconds in barriers.cpu_s.items()},
    )


def tree_points(case: TreeCase, phase: str, measured: Sequence[Way], turns: Turns[TieredSample]) -> list[Point]:
    """One phase of the runs. torch's server does not count, so it has neither requests nor bytes."""
    return [
        Point(
            "tiered",
            f"{case.name}, {_TITLES[phase]}",
            way.target,
            figure,
            title,
            unit,
            tuple(of(sample.phases[phase]) for sample in turns.samples[way.name]) if counted else (),
            nodes=case.proxies,
            axis="proxies",
            reference=way.reference,
            unfinished=turns.unfinished.get(way.name, "") if counted else "torch's server does not count",
        )
        for figure, (title, unit, of) in FIGURES.items()
        for way in measured
        for counted in [way.route != TORCH or figure in ("wall", "cpu")]
    ]


def tree_details(phase: str, measured: Sequence[Way], turns: Turns[TieredSample]) -> dict[str, Any]:
    """Everything that was read in each run."""
    runs = {
        way.target: [asdict(sample.phases[phase]) | {"proxies": sample.proxies} for sample in turns.samples[way.name]]
        for way in measured
    }
    return {"hosts": "loopback", "runs": runs}


def tree_goals(case: TreeCase, measured: Sequence[Way], turns: Turns[TieredSample]) -> list[Goal]:
    """The goals for a barrier of this many ranks over a tree of proxies."""
    if case.ranks < _FROM_RANKS:
        return []
    goals = []
    for way in measured:
        if way.fanout:
            samples = [sample.phases["barrier"].wall_s for sample in turns.samples[way.name]]
            where = f"{case.name}, {way.target}"
            seconds = median(samples) if samples else None
            why = "" if samples else turns.unfinished.get(way.name, "not measured")
            goals.append(Goal("time of a barrier at the root, in seconds", where, _MOST_BARRIER_S, seconds, why))
    return goals
