"""``rdzv bench launch``: how long until the workers speak, and what the agent costs, beside torchrun."""

from __future__ import annotations

import dataclasses
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass

from rdzv_launcher.bench.backends import candidates
from rdzv_launcher.bench.children import family_cpu_seconds, peak_memory
from rdzv_launcher.bench.jobs import Job, JobBench, JobCase, JobFailed, JobGround, Launcher, job_bench, preloading
from rdzv_launcher.bench.jobs import references as torch_s_own
from rdzv_launcher.bench.points import Turns

_ONE_NODE_WORKERS, _FULL_NODE_WORKERS = 2, 8
_WITHOUT_TORCH = {
    "first_line": ("time to the first line", "s"),
    "agent_peak": ("peak memory of an agent", "MiB"),
    "ending": ("time to the end", "s"),
}
"""Of the runs in which workers do not import torch: title and unit of each figure."""
_WITH_TORCH = {
    "first_collective": ("time to the first collective", "s"),
    "job_cpu": ("CPU of the whole job until the first collective", "s"),
}
"""Of those in which they do."""
_ALONE = [Launcher(name, name, "") for name in ("rdzv-run", "torchrun")]
_CAPTION = """\
Ratios are the median of those of the turns, to torchrun in the same turn.
  first line        from the start of the agents to the first line of a worker, on the last node to have one
  first collective  from the start of the agents to the end of the first all_reduce, over gloo, of all workers, which
                    import torch; these are runs of their own: in the others the workers do not
  CPU of the job    of agents, workers and all else that they have started, up to there: user and system
  peak memory       largest resident memory of the agent itself until its workers run (the larger, of several)
  time to the end   from letting the workers end to the end of the last agent
Nodes are agents on this machine which share its processors, and meet at 127.0.0.1; --local-addr says so to all of them.
{remarks}
torchrun also loads the entry point of rdzv-plugins, because it is installed beside it."""


def run(args: Namespace) -> int:
    """Measure every case and print the figures; returns the exit code. Raises ``UsageError`` and ``RdzvError``."""
    nodes = "nodes" in args.cases
    with job_bench(args, candidates(args, own_times=True) if nodes else []) as bench:
        launch = Launch(args.nodes, args.workers, bench.ground, args.limit)
        alone = dataclasses.replace(launch, nodes=1, workers=_ONE_NODE_WORKERS)
        if "one-node" in args.cases:
            _case(alone, _ALONE, args, bench)
        if nodes:
            _case(launch, [*bench.mine, *torch_s_own(args.references)], args, bench)
        if "preload" in args.cases and args.collectives:
            for workers in (_ONE_NODE_WORKERS,) if args.quick else (_ONE_NODE_WORKERS, _FULL_NODE_WORKERS):
                _preload_case(dataclasses.replace(alone, workers=workers), args, bench)
        bench.output.end(_CAPTION.format(remarks=bench.remarks) + _compiled())
    return 0


def _case(launch: Launch, launchers: Sequence[Launcher], args: Namespace, bench: JobBench) -> None:
    """Run the launches without torch in turns, and then those with it."""
    case = JobCase(_name(launch), bench, launchers)
    light = case.turns(
        lambda launcher: launch.run(launcher, collective=False), repeats=args.repeats, warm_up=not args.quick
    )
    case.add(light, _WITHOUT_TORCH)
    # no warm-up: agents read torch, too, so by now all is in memory except what only the workers read of it
    case.add(_collectives(case, launch, args, warm_up=False), _WITH_TORCH)
    case.write({})


def _preload_case(launch: Launch, args: Namespace, bench: JobBench) -> None:
    """Workers that import torch: of launchers without any rendezvous flag, and of one that imports it for them."""
    case = JobCase(f"{_name(launch)} with torch", bench, [preloading(_ALONE[0], "torch"), *_ALONE])
    case.add(_collectives(case, launch, args, warm_up=not args.quick), _WITH_TORCH)
    case.write({})


def _collectives(case: JobCase, launch: Launch, args: Namespace, *, warm_up: bool) -> Turns[LaunchSample]:
    """The runs in which workers import torch, and get to their first collective."""
    return case.turns(
        lambda launcher: launch.run(launcher, collective=True),
        repeats=args.collectives,
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


# one launch, from start to end, and what it cost


@dataclass(frozen=True)
class LaunchSample:
    """The figures of one launch, in seconds and MiB; see the caption."""

    first_line: float
    first_collective: float
    """The time to the last line of all; after the first collective, where there is one."""
    job_cpu: float
    agent_peak: float
    ending: float


@dataclass(frozen=True)
class Launch:
    """What is launched, the same for all targets."""

    nodes: int
    workers: int
    ground: JobGround
    limit_s: float

    def run(self, launcher: Launcher, *, collective: bool) -> LaunchSample:
        """Launch once. Raises ``JobFailed`` if it fails, or takes longer than the limit."""
        nodes = range(self.nodes)
        mode = "collective" if collective else "line"
        with Job(self.ground, launcher, str(self.nodes), self.workers, mode) as job:
            began = time.monotonic()
            for node in nodes:
                job.start_agent(node)
            lines = self.workers * (2 if collective else 1)
            started: list[list[float]] = job.wait(
                lambda: all(len(job.said(node)) == lines for node in nodes) and _times(job, nodes),
                nodes,
                began,
                self.limit_s,
                "the workers did not start",
            )
            cpu = sum(family_cpu_seconds(agent.pid) for agent in job.agents)
            peak = max(peak_memory(agent.pid) for agent in job.agents)
            end = time.monotonic()
            for agent in job.agents:
                job.let_end(agent)
            codes = job.ends(end + self.limit_s)
            ending = time.monotonic() - end
            if any(codes):
                bad = next(node for node in nodes if codes[node])
                raise JobFailed(f"exit codes {codes}", job.last_words(bad))
        first, last = max(map(min, started)), max(map(max, started))
        return LaunchSample(first - began, last - began, cpu, peak, ending)


def _times(job: Job, nodes: Sequence[int]) -> list[list[float]]:
    """When the workers of each node have said something."""
    return [[said["at"] for said in job.said(node)] for node in nodes]
