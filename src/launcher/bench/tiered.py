"""``rdzv bench tiered``: what the start of a job asks of the workers' store, through proxies and without them.

The ranks are connections of the native load generator, which checks every reply; they ask what torch's ranks ask, one
request after the other. Root, proxies and relay have processes of their own, new ones for every run; the ways take
turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from launcher.bench.output import Output
from launcher.bench.store_cases import load_module
from launcher.bench.tiered_cases import STAGES, Case, Way, measure
from launcher.bench.tiered_goals import Goal, goals
from launcher.bench.tiered_goals import as_text as goals_text
from launcher.bench.tiered_network import Network, fits, may_have_namespaces
from launcher.bench.tiered_report import as_details, as_points, caption, stages
from launcher.bench.tiered_workers import ROUTES as WORKER_ROUTES
from launcher.bench.tiered_workers import as_points as worker_points
from launcher.bench.tiered_workers import measure as measure_workers
from launcher.bench.turns import take_turns
from rdzv_plugins.kvstore.limits import raise_file_limit
from rdzv_plugins.kvstore.server import native_part

_SLOW_S = 30.0
"""A way that takes longer is not repeated."""


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    nodes: tuple[int, ...]
    """Of gloo's start; empty: not at all."""
    per_node: int
    routes: tuple[str, ...]
    delay_s: float
    """Of a round trip between a node and the root: each way is measured with and without; 0: only without."""
    many_nodes: int
    """Of NCCL's start; 0: not at all."""
    many_per_node: int
    fanout: int
    workers: tuple[int, int] | None
    """Nodes, and real workers on each; None: none."""
    hosts: str
    repeats: int
    limit_s: float

    def ways(self) -> list[Way]:
        """Of gloo's start: without a delay first."""
        delays = [0.0, self.delay_s] if self.delay_s else [0.0]
        return [Way(route, delay) for delay in delays for route in self.routes]

    def ways_of_many(self) -> list[Way]:
        """Of NCCL's start: without a delay, and with a second tier."""
        more = [Way("tiered", fanout=self.fanout)] if self.fanout and "tiered" in self.routes else []
        return [*(Way(route) for route in self.routes), *more]


def run(settings: Settings, *, as_json: bool, out: str | None) -> int:
    """Measure and print; returns the exit code.

    Raises ``UsageError``, ``MissingDependency`` where the native parts were not built, and ``RdzvError`` for a wrong
    reply or a process that ends.
    """
    load_module()
    native_part()
    raise_file_limit()
    namespaces = may_have_namespaces(settings.hosts)
    options = asdict(settings) | {"hosts": "namespaces" if namespaces else "loopback"}
    reached: list[Goal] = []
    given_up: dict[str, str] = {}
    with Output("tiered", options, as_json=as_json, out=out) as output:
        for nodes in settings.nodes:
            case = Case(nodes, settings.per_node, (*STAGES["gloo init"], *STAGES["barrier"]), settings.limit_s)
            reached += _measure(case, settings, settings.ways(), output, given_up, namespaces=namespaces)
        if settings.many_nodes:
            phases = (*STAGES["NCCL init"], *STAGES["barrier"])
            case = Case(settings.many_nodes, settings.many_per_node, phases, settings.limit_s)
            reached += _measure(case, settings, settings.ways_of_many(), output, {}, namespaces=namespaces)
        if settings.workers is not None:
            _measure_workers(settings, output, namespaces=namespaces)
        data = {"goals": [asdict(goal) | {"met": goal.met} for goal in reached]}
        output.case("goals", [], details=data, text=goals_text(reached))
        output.end(caption(settings.ways()))
    return 0


def _measure(
    case: Case, settings: Settings, ways: Sequence[Way], output: Output, given_up: dict[str, str], *, namespaces: bool
) -> list[Goal]:
    """One number of nodes, by all ways; returns what was reached of what should be."""
    namespaces = namespaces and fits(case.nodes)
    by_name = {way.name: way for way in ways}
    with Network(case.nodes, namespaces=namespaces) as network:
        turns = take_turns(
            case.name,
            [*by_name],
            lambda name, turn: measure(case, by_name[name], network),
            repeats=settings.repeats,
            progress=output.progress,
            warm_up=settings.repeats > 1,
            given_up=given_up,
            once=lambda sample: sample.wall_s > _SLOW_S,
        )
    reached = []
    for delay in dict.fromkeys(way.delay_s for way in ways):
        together = [way for way in ways if way.delay_s == delay]
        for stage in stages(case):
            points = as_points(case, stage, together, turns)
            details = as_details(stage, together, turns, namespaces=namespaces)
            output.case(points[0].case, points, details=details)
            reached += goals(case, stage, together, turns, points)
    return reached


def _measure_workers(settings: Settings, output: Output, *, namespaces: bool) -> None:
    assert settings.workers is not None, "asked for"
    nodes, per_node = settings.workers
    routes = [route for route in settings.routes if route in WORKER_ROUTES]
    case = f"{nodes} nodes x {per_node} ranks, workers of torch"
    with Network(nodes, namespaces=namespaces and fits(nodes)) as network:
        turns = take_turns(
            case,
            routes,
            lambda route, turn: measure_workers(network, per_node, route, settings.limit_s),
            repeats=settings.repeats,
            progress=output.progress,
            warm_up=settings.repeats > 1,
        )
    runs = {route: [asdict(sample) for sample in samples] for route, samples in turns.samples.items()}
    output.case(case, worker_points(case, nodes, turns), details={"runs": runs})
