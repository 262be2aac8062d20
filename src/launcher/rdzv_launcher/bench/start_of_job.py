"""The workload ``init`` of ``rdzv bench store``: what a job's start asks of the root, through proxies and without them.

The ranks are connections of the native load generator, which checks every reply; they ask what torch's ranks ask, one
request after another. Root, proxies and relay have processes of their own, new ones for every run; the ways take turns.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rdzv_launcher.bench import servers
from rdzv_launcher.bench.children import Child
from rdzv_launcher.bench.points import Point, Turns, take_turns
from rdzv_launcher.bench.readings import settled
from rdzv_launcher.bench.results import Output

if TYPE_CHECKING:
    from rdzv_launcher.bench._load import Figures

_STAGES = {"gloo init": ("enrol", "gloo"), "barrier": ("store_barrier",)}
"""What is reported: a stage consists of phases of the load."""
_TRUNK = ("attach", "forward", "follow", "unfollow", "arrive", "give_back", "recalled")
_SLOW_S = 30.0
_SETTLE_LIMIT_S = 2.0
_WINDOW = 256
_SOURCES = [f"127.0.0.{number}" for number in range(1, 17)]
"""Addresses on loopback: finding a free port is slow for a kernel that has given most of one address away."""
_FILES_PER_PROCESS, _FILES_PER_PROXY = 18_000, 10
"""The second: a proxy's own files, besides one for each worker."""
CAPTION = """
In init all of it is on one machine, which plays every node: wall time holds what nodes would do at the same time on
machines of their own. A run that takes more than 30 s is not repeated.
  direct      every rank connects to the root
  tiered      every rank connects to the proxy of its node over loopback, or a Unix socket (tiered-unix); fanout=K: the
              proxies of K nodes dial the root, and those of the other nodes dial one of these
  N ms        with a relay between the nodes and the root: of a round trip; within a node there is no delay. The relay's
              processor time is part of the wall time
  requests    at the root: those of the ranks, or what the proxies ask (they forward, follow keys, arrive at barriers);
              what a proxy says of itself every few seconds is left out
  bytes       that the root has received and sent, in the same time
  CPU         of the processes of root and proxies, all their threads, user and system (schedstat)
  gloo init   each rank: ADD on torch's own key, SET of its blob, and for each of the ranks WAIT, WAIT, GET
  barrier     torch's BARRIER, once"""


@dataclass(frozen=True)
class Way:
    """How the ranks reach the root."""

    route: str
    delay_ms: float = 0.0
    """How much longer a round trip between a node and the root takes; there is no delay within a node."""
    fanout: int = 0
    """The number of proxies at the root, which those of the other nodes dial; 0: all dial the root."""

    @property
    def target(self) -> str:
        """Its name among the ways with the same delay."""
        return f"{self.route}, fanout={self.fanout}" if self.fanout else self.route

    @property
    def delay(self) -> str:
        return f", {self.delay_ms:g} ms" if self.delay_ms else ""


@dataclass
class Stage:
    """The figures of one stage of a run."""

    wall_s: float
    asked: int
    """The number of requests from the ranks."""
    root: dict[str, int]
    """Requests at the root, by name."""
    root_bytes: int
    """The bytes that the root received and sent."""
    connections: int
    """The number of connections at the root, afterwards."""
    cpu_s: float
    """CPU time of root and proxies."""


_FIGURES: dict[str, tuple[str, str, Callable[[Stage], float]]] = {
    # figure: title, unit, value from a stage
    "init_wall": ("wall time of the start", "s", lambda stage: stage.wall_s),
    "root_requests": ("requests at the root", "requests", lambda stage: sum(stage.root.values())),
    "root_bytes": ("bytes at the root", "bytes", lambda stage: stage.root_bytes),
    "root_cpu": ("CPU of root and proxies", "s", lambda stage: stage.cpu_s),
}


def measure(args: Namespace, output: Output) -> None:
    """Measure all numbers of nodes, by all ways."""
    delays = [0.0, args.delay] if args.delay else [0.0]
    ways = [Way(route, delay) for delay in delays for route in ("direct", "tiered", "tiered-unix")]
    given_up: dict[str, str] = {}
    for nodes, each in args.job:
        more = [Way("tiered", delay, args.fanout) for delay in delays] if 0 < args.fanout < nodes else []
        by_name = {way.target + way.delay: way for way in (*ways, *more)}
        turns = take_turns(
            f"{nodes} nodes x {each} ranks, init",
            [*by_name],
            lambda name, turn, by_name=by_name, nodes=nodes, each=each: run_once(
                by_name[name], nodes, each, args.limit
            ),  # type: ignore[misc]
            repeats=args.repeats,
            progress=output.progress,
            given_up=given_up,
            once=lambda stages: sum(stage.wall_s for stage in stages.values()) > _SLOW_S,
        )
        for delay in delays:
            together = {name: way for name, way in by_name.items() if way.delay_ms == delay}
            for stage in _STAGES:
                case = f"{nodes} nodes x {each} ranks, {stage}{next(iter(together.values())).delay}"
                runs = {
                    way.target: [asdict(sample[stage]) for sample in turns.samples[name]]
                    for name, way in together.items()
                }
                output.case(case, _points(case, stage, nodes, together, turns), details={"runs": runs})


def _points(case: str, stage: str, nodes: int, together: dict[str, Way], turns: Turns[dict[str, Stage]]) -> list[Point]:
    return [
        Point(
            "store",
            case,
            way.target,
            figure,
            title,
            unit,
            tuple(of(sample[stage]) for sample in turns.samples[name]),
            nodes=nodes,
            reference=way.route == "direct",
            unfinished=turns.unfinished.get(name, ""),
        )
        for figure, (title, unit, of) in _FIGURES.items()
        for name, way in together.items()
    ]


def run_once(way: Way, nodes: int, per_node: int, limit_s: float) -> dict[str, Stage]:
    """One run, with its own processes: the stages by name.

    Raises ``DidNotFinish``, and ``RdzvError`` for a wrong reply or a process that ends.
    """
    ranks = nodes * per_node
    with ExitStack() as running:
        root = running.enter_context(Child("the root's process", servers.store_server))
        port = entrance = root.answer()
        if way.delay_ms:
            dialled = running.enter_context(
                Child("the relay", servers.relay, servers.LOOPBACK, port, way.delay_ms / 2000)
            )
            entrance = dialled.answer()
        parts: list[Child] = []
        places = [f"{servers.LOOPBACK}:{entrance}"]
        if way.route != "direct":
            places = _open_proxies(way, nodes, per_node, entrance, parts, running)
        who = f"{way.target}{way.delay}, {ranks} ranks on {nodes} nodes"
        with servers.load_of(who) as load:
            load.connect(
                ranks,
                window=_WINDOW,
                sources=_SOURCES if way.route != "tiered-unix" else [],
                storm=False,
                limit_s=limit_s,
                places=places,
            )

            def phase(name: str) -> Figures:
                return load.run(name, prefix="", rounds=1, gets=ranks, limit_s=limit_s)

            return {name: _read([root, *parts], phases, phase) for name, phases in _STAGES.items()}


def _open_proxies(
    way: Way, nodes: int, per_node: int, entrance: int, parts: list[Child], running: ExitStack
) -> list[str]:
    """Open one proxy for each node, in as few ``parts`` as their files allow; returns where its workers dial."""
    together = max(1, _FILES_PER_PROCESS // (per_node + _FILES_PER_PROXY))
    groups = [range(start, min(start + together, nodes)) for start in range(0, nodes, together)]
    for _ in groups:
        parts.append(running.enter_context(Child("the proxies' process", servers.proxies)))
        parts[-1].answer()
    where: dict[int, str] = {}
    for of_parents in (True, False) if way.fanout else (False,):
        for part, group in zip(parts, groups, strict=True):
            mine = [node for node in group if not way.fanout or (node < way.fanout) == of_parents]
            roots = [
                int(where[node % way.fanout].rpartition(":")[2]) if way.fanout and not of_parents else entrance
                for node in mine
            ]
            question = {
                "names": [f"node-{node}" for node in mine],
                "unix": way.route == "tiered-unix",
                "parents": of_parents,
                "roots": roots,
            }
            where.update(zip(mine, part.ask(question), strict=True))
    return [where[node] for node in range(nodes)]


def _read(processes: Sequence[Child], phases: Sequence[str], phase: Callable[[str], Figures]) -> Stage:
    """What these phases of the load, one after the other, cost the root, the first of the processes, and the others."""

    def cpu_s() -> float:
        return settled(lambda: sum(part.cpu_seconds() for part in processes), _SETTLE_LIMIT_S)

    root = processes[0]
    before, cpu = root.ask({}), cpu_s()
    figures = [phase(name) for name in phases]
    cpu, after = cpu_s() - cpu, root.ask({})
    return Stage(
        wall_s=sum(each.seconds for each in figures),
        asked=sum(each.requests for each in figures),
        root=_new_requests(after["requests"], before["requests"]),
        root_bytes=sum(after["bytes"].values()) - sum(before["bytes"].values()),
        connections=after["connections"]["open"],
        cpu_s=cpu,
    )


def _new_requests(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """What was asked since; only of trunks if there are any, as what they forward is counted again by its name."""
    new = {name: count - before.get(name, 0) for name, count in now.items()}
    names = (
        _TRUNK if any(new.get(name) for name in _TRUNK) else [name for name in new if name not in ("framed", "report")]
    )
    return {name: new[name] for name in names if new.get(name)}
