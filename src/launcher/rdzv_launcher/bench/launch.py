"""``rdzv bench launch``: how long until the workers speak, and what the agent costs, beside torchrun."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence

from rdzv_launcher.bench import jobs
from rdzv_launcher.bench.backends import candidates
from rdzv_launcher.bench.children import Guard, family_cpu_seconds, peak_memory
from rdzv_launcher.bench.jobs import Job, JobBench, JobCase, JobFailed, JobSample, Launcher
from rdzv_plugins.plain_text import many

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
_ALONE = [Launcher(name, name) for name in ("rdzv-run", "torchrun")]
_CAPTION = """\
Ratios are medians over the turns, to torchrun in the same turn.
  first line        from starting the agents to the first line of a worker, on the last node to have one
  first collective  from starting the agents to the end of all workers' first all_reduce over gloo. These are runs of
                    their own, with workers that import torch
  CPU of the job    of agents, workers and everything that they started, until then: user and system
  peak memory       largest resident memory of the agent (of several, the larger) until its workers run
  time to the end   from letting the workers end to the end of the last agent
The nodes are agents on this machine that share its processors, with 127.0.0.1 as endpoint and --local-addr.
{remarks}
torchrun also loads the entry point of rdzv-plugins, which is installed beside it."""


def run(args: Namespace) -> int:
    """Measure every case and print the figures; returns the exit code. Raises ``UsageError`` and ``RdzvError``."""
    nodes = "nodes" in args.cases
    with jobs.job_bench(args, candidates(args, own_times=True) if nodes else []) as bench:
        if "one-node" in args.cases:
            _case(1, _ONE_NODE_WORKERS, _ALONE, args, bench)
        if nodes:
            _case(args.nodes, args.workers, [*bench.mine, *jobs.references(args.references)], args, bench)
        if "preload" in args.cases and args.collectives:
            for workers in (_ONE_NODE_WORKERS,) if args.quick else (_ONE_NODE_WORKERS, _FULL_NODE_WORKERS):
                _case(1, workers, [jobs.preloading(_ALONE[0], "torch"), *_ALONE], args, bench, preload=True)
        bench.output.end(_CAPTION.format(remarks=bench.remarks) + _compiled())
    return 0


def _case(
    nodes: int, workers: int, launchers: Sequence[Launcher], args: Namespace, bench: JobBench, *, preload: bool = False
) -> None:
    """Run the launches without torch in turns, and then those whose workers get to their first collective.

    ``preload``: only the latter, of which one launcher imports torch for its workers.
    """
    where, each = ("one node", "") if nodes == 1 else (f"{nodes} nodes", " each")
    name = f"{where}, {many(workers, 'worker')}{each}"
    case = JobCase(f"{name} with torch" if preload else name, bench.output, launchers)

    def once(mode: str) -> Callable[[Launcher], JobSample]:
        return lambda launcher: launch(launcher, mode, nodes, workers, bench.guard, args.limit)

    warm_up = not args.quick
    if not preload:
        case.measure(once("line"), _WITHOUT_TORCH, repeats=args.repeats, warm_up=warm_up)
        # agents read torch, too, so by now all is in memory except what only the workers read of it
        warm_up = False
    more = ", first collective"
    case.measure(once("collective"), _WITH_TORCH, repeats=args.collectives, warm_up=warm_up, more=more)
    case.write({})


def _compiled() -> str:
    if not sys.dont_write_bytecode:
        return ""
    return "\nPYTHONDONTWRITEBYTECODE is set: Python modules that pip did not compile are compiled at every start."


def launch(launcher: Launcher, mode: str, nodes: int, workers: int, guard: Guard, limit_s: float) -> JobSample:
    """Launch once, with workers in the mode ``line`` or ``collective``; returns the figures, see the caption.

    Raises ``JobFailed`` if it fails, or takes longer than the limit.
    """
    numbers = range(nodes)
    with Job(guard, launcher, str(nodes), workers, mode) as job:
        began = time.monotonic()
        for node in numbers:
            job.start_agent(node)
        lines = workers * (2 if mode == "collective" else 1)
        started: list[list[float]] = job.wait(
            lambda: all(len(job.said(node)) == lines for node in numbers) and _times(job, numbers),
            numbers,
            began,
            limit_s,
            "the workers did not start",
        )
        cpu = sum(family_cpu_seconds(agent.pid) for agent in job.agents)
        peak = max(peak_memory(agent.pid) for agent in job.agents)
        end = time.monotonic()
        for agent in job.agents:
            job.let_end(agent)
        codes = job.ends(end + limit_s)
        ending = time.monotonic() - end
        if any(codes):
            bad = next(node for node in numbers if codes[node])
            raise JobFailed(f"exit codes {codes}", job.last_words(bad))
    return {
        "first_line": max(map(min, started)) - began,
        "first_collective": max(map(max, started)) - began,  # their last line, where there is no collective
        "job_cpu": cpu,
        "agent_peak": peak,
        "ending": ending,
    }


def _times(job: Job, nodes: Sequence[int]) -> list[list[float]]:
    """When the workers of each node have said something."""
    return [[said["at"] for said in job.said(node)] for node in nodes]
