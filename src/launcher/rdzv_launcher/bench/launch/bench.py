"""``rdzv bench launch``: how long until the workers speak, and what the agent costs, beside torchrun."""

from __future__ import annotations

import dataclasses
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from rdzv_launcher.bench.backends import Candidate, candidates
from rdzv_launcher.bench.jobs.bench import JobCase, JobGround, job_ground, job_output
from rdzv_launcher.bench.jobs.launchers import Launcher, preloading
from rdzv_launcher.bench.launch import worker
from rdzv_launcher.bench.launch.settings import LaunchSettings
from rdzv_launcher.bench.launch.starts import Launch, LaunchSample
from rdzv_launcher.bench.method.points import Point
from rdzv_launcher.bench.method.turns import Turns
from rdzv_launcher.bench.report.output import Output

_ONE_NODE_WORKERS = 2
_FIGURES = {
    "first_line": ("time to the first line", "s"),
    "first_collective": ("time to the first collective", "s"),
    "job_cpu": ("CPU of the whole job until the first collective", "s"),
    "agent_cpu": ("CPU of agents and service until then", "s"),
    "agent_peak": ("peak memory of an agent", "MiB"),
    "ending": ("time to the end", "s"),
    "total_cpu": ("CPU of agents, service and workers", "s"),
}
_WITH_TORCH = {
    "first_collective": "all_lines",
    "job_cpu": "job_cpu",
}
"""Figures of the runs in which workers import torch, with the fields of a sample that hold them."""
_ALONE = [Launcher(name, name, "") for name in ("rdzv-run", "torchrun")]
_CAPTION = """\
Ratios are the median of those of the turns, to torchrun in the same turn.
  first line        from the start of the agents to the first line of a worker, on the last node to have one
  first collective  from the start of the agents to the end of the first all_reduce, over gloo, of all workers, which
                    import torch; these are runs of their own: in the others the workers do not
  CPU of the job    of agents, workers and all else that they have started, and of that service, up to there
  CPU until then    of the agents and of a service that they dial, if it was started here (etcd), up to the first line:
                    user and system, all nodes added up
  peak memory       largest resident memory of the agent itself over its whole life (the larger, of several)
  time to the end   from letting the workers end to the end of the last agent
  CPU, whole        of the agents over their whole life, of the service meanwhile, and of the workers: wait4 counts
                    children that were waited for
Nodes are agents on this machine which share its processors, and meet at 127.0.0.1; --local-addr says so to all of them.
{remarks}torchrun also loads the entry point of rdzv-plugins, because it is installed beside it."""


def run(settings: LaunchSettings, args: Namespace) -> int:
    """Measure every case and print the figures; returns the exit code. Raises ``UsageError`` and ``RdzvError``."""
    found = candidates(args, own_times=True) if "nodes" in settings.cases else []
    output = job_output("launch", settings, args, found)
    return measure(settings, found, output, asked_for=args.backends is not None)


def measure(settings: LaunchSettings, found: list[Candidate], output: Output, *, asked_for: bool) -> int:
    """The rest of ``run``, once it is known who is measured; ``asked_for``: the backends were named by the user."""
    nodes = "nodes" in settings.cases
    with job_ground(output, found, worker, asked_for=asked_for, services=nodes) as ground:
        launch = Launch(settings.nodes, settings.workers, ground.worker, ground.guard, ground.before, settings.limit_s)
        if "one-node" in settings.cases:
            alone = dataclasses.replace(launch, nodes=1, workers=_ONE_NODE_WORKERS)
            _case(alone, _ALONE, settings, ground, {})
        if nodes:
            _case(launch, ground.launchers(settings.references, {}), settings, ground, {"left_out": ground.left_out})
        if "preload" in settings.cases and settings.collectives:
            for workers in dict.fromkeys((_ONE_NODE_WORKERS, settings.full_node)):
                _preload_case(dataclasses.replace(launch, nodes=1, workers=workers), settings, ground)
        output.end(_CAPTION.format(remarks=ground.remarks) + _compiled())
    return 0


def _case(
    launch: Launch,
    launchers: Sequence[Launcher],
    settings: LaunchSettings,
    ground: JobGround,
    details: Mapping[str, Any],
) -> None:
    """Run the launches without torch in turns, and then those with it."""
    case = JobCase("launch", _name(launch), ground, launchers)
    light = case.turns(
        lambda launcher: launch.run(launcher, collective=False), repeats=settings.repeats, warm_up=settings.warm_up
    )
    # no warm-up: agents read torch, too, so by now all is in memory except what only the workers read of it
    heavy = _collectives(case, launch, settings, warm_up=False)
    points: list[Point] = []
    for figure, about in _FIGURES.items():
        turns, of = (heavy, _WITH_TORCH[figure]) if figure in _WITH_TORCH else (light, figure)
        leads = figure in ("first_line", "first_collective")
        points += case.points(turns, figure, about, attrgetter(of), leads=leads)
    cpu = {name: [round(sample.total_cpu, 2) for sample in samples] for name, samples in heavy.samples.items()}
    case.write(points, {**details, "collective_cpu_s": cpu})


def _preload_case(launch: Launch, settings: LaunchSettings, ground: JobGround) -> None:
    """Workers that import torch: of launchers without any rendezvous flag, and of one that imports it for them."""
    launchers = [preloading(_ALONE[0], "torch"), *_ALONE]
    case = JobCase("launch", f"{_name(launch)} with torch", ground, launchers)
    turns = _collectives(case, launch, settings, warm_up=settings.warm_up)
    points: list[Point] = []
    for figure, of in _WITH_TORCH.items():
        points += case.points(turns, figure, _FIGURES[figure], attrgetter(of), leads=figure == "first_collective")
    case.write(points, {})


def _collectives(case: JobCase, launch: Launch, settings: LaunchSettings, *, warm_up: bool) -> Turns[LaunchSample]:
    """The runs in which workers import torch, and get to their first collective."""
    return case.turns(
        lambda launcher: launch.run(launcher, collective=True),
        repeats=settings.collectives,
        warm_up=warm_up,
        more=", first collective",
    )


def _name(launch: Launch) -> str:
    nodes = "one node" if launch.nodes == 1 else f"{launch.nodes} nodes"
    each = " each" if launch.nodes > 1 else ""
    return f"{nodes}, {launch.workers} worker{'s' if launch.workers > 1 else ''}{each}"


def _compiled() -> str:
    if not sys.dont_write_bytecode:
        return ""
    return "\nPYTHONDONTWRITEBYTECODE is set: Python modules that pip did not compile are compiled at every start."
