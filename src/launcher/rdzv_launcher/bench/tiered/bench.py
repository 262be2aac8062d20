"""``rdzv bench tiered``: what the start of a job asks of the workers' store, through proxies and without them.

The ranks are connections of the native load generator, which checks every reply; they ask what torch's ranks ask, one
request after another. Root, proxies and relay have processes of their own, new ones for every run; the ways take turns.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict

from rdzv_launcher.bench.method.turns import take_turns
from rdzv_launcher.bench.processes.guard import Guard
from rdzv_launcher.bench.processes.hosts import Network, fits, may_have_namespaces
from rdzv_launcher.bench.processes.load import load_module
from rdzv_launcher.bench.processes.names import hosts_file_only
from rdzv_launcher.bench.report.output import Output
from rdzv_launcher.bench.tiered.cases import STAGES, TieredCase, Way, measure
from rdzv_launcher.bench.tiered.figures import as_details, as_points, caption, stages
from rdzv_launcher.bench.tiered.goals import Goal, goals
from rdzv_launcher.bench.tiered.goals import as_text as goals_text
from rdzv_launcher.bench.tiered.settings import TieredSettings
from rdzv_launcher.bench.tiered.tree import CAPTION as TREE_CAPTION
from rdzv_launcher.bench.tiered.tree import PHASES, TreeCase, measure_tree, tree_details, tree_goals, tree_points
from rdzv_launcher.bench.tiered.tree import ways as tree_ways
from rdzv_launcher.bench.tiered.workers import ROUTES as WORKER_ROUTES
from rdzv_launcher.bench.tiered.workers import as_points as worker_points
from rdzv_launcher.bench.tiered.workers import measure as measure_workers
from rdzv_plugins.kvstore.native.limits import raise_file_limit
from rdzv_plugins.kvstore.native.server import native_part

_SLOW_S = 30.0
"""A way that takes longer is not repeated."""


def run(settings: TieredSettings, args: Namespace) -> int:
    """Measure and print; returns the exit code.

    Raises ``UsageError``, ``MissingDependency`` if the native parts were not built, and ``RdzvError`` for a wrong reply
    or a process that ends.
    """
    load_module()
    native_part()
    raise_file_limit()
    namespaces = may_have_namespaces(settings.hosts)
    options = asdict(settings) | {"hosts": "namespaces" if namespaces else "loopback"}
    reached: list[Goal] = []
    given_up: dict[str, str] = {}
    with Output("tiered", options, as_json=args.json, out=args.out) as output:
        for nodes in settings.nodes:
            case = TieredCase(nodes, settings.per_node, (*STAGES["gloo init"], *STAGES["barrier"]), settings.limit_s)
            reached += _measure(case, settings, settings.ways(), output, given_up, namespaces=namespaces)
        if settings.many is not None:
            phases = (*STAGES["NCCL init"], *STAGES["barrier"])
            case = TieredCase(*settings.many, phases, settings.limit_s)
            reached += _measure(case, settings, settings.ways_of_many(), output, {}, namespaces=namespaces)
        if settings.tree is not None:
            reached += _measure_tree(TreeCase(*settings.tree, settings.limit_s), settings, output)
        if settings.workers is not None:
            _measure_workers(settings, output, namespaces=namespaces)
        data = {"goals": [asdict(goal) | {"met": goal.met} for goal in reached]}
        output.case("goals", [], details=data, text=goals_text(reached))
        output.end("\n".join([caption(settings.ways()), *([TREE_CAPTION] if settings.tree is not None else [])]))
    return 0


def _measure(
    case: TieredCase,
    settings: TieredSettings,
    ways: Sequence[Way],
    output: Output,
    given_up: dict[str, str],
    *,
    namespaces: bool,
) -> list[Goal]:
    """Measure one number of nodes, by all ways; returns which goals were reached, and how far."""
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


def _measure_tree(case: TreeCase, settings: TieredSettings, output: Output) -> list[Goal]:
    """Measure simulated proxies, by all ways; returns which goals were reached, and how far."""
    by_name = {way.name: way for way in tree_ways(settings.fanout)}
    with Guard() as guard:
        prefix = hosts_file_only(guard.directory) or []
        turns = take_turns(
            case.name,
            [*by_name],
            lambda name, turn: measure_tree(case, by_name[name], prefix),
            repeats=settings.repeats,
            progress=output.progress,
            warm_up=settings.repeats > 1,
            once=lambda sample: sample.wall_s > _SLOW_S,
        )
    measured = [*by_name.values()]
    for phase in PHASES:
        points = tree_points(case, phase, measured, turns)
        output.case(points[0].case, points, details=tree_details(phase, measured, turns))
    return tree_goals(case, measured, turns)


def _measure_workers(settings: TieredSettings, output: Output, *, namespaces: bool) -> None:
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
