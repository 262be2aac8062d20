"""``rdzv bench launch``: how long until the workers speak, and what the agent costs, beside torchrun."""

from __future__ import annotations

import dataclasses
import os
import selectors
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

from rdzv_launcher.bench.backends import candidates
from rdzv_launcher.bench.children import Guard, end_all, environment
from rdzv_launcher.bench.jobs import (
    JobCase,
    JobFailed,
    JobGround,
    Launcher,
    job_ground,
    last_words,
    meet,
    preloading,
    references,
)
from rdzv_launcher.bench.launch_worker import LINE
from rdzv_launcher.bench.points import DidNotFinish, Point, Turns
from rdzv_launcher.bench.readings import cpu_seconds, family_cpu_seconds, peak_memory
from rdzv_plugins.testing.processes import default_signals

_ONE_NODE_WORKERS = 2
_SAMPLE_EVERY_S = 0.002
_STOP_S = 10.0
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
{remarks}
torchrun also loads the entry point of rdzv-plugins, because it is installed beside it."""


def run(args: Namespace) -> int:
    """Measure every case and print the figures; returns the exit code. Raises ``UsageError`` and ``RdzvError``."""
    nodes = "nodes" in args.cases
    found = candidates(args, own_times=True) if nodes else []
    with job_ground(args, found, "launch_worker.py", services=nodes) as ground:
        launch = Launch(args.nodes, args.workers, ground.worker, ground.guard, args.limit)
        if "one-node" in args.cases:
            alone = dataclasses.replace(launch, nodes=1, workers=_ONE_NODE_WORKERS)
            _case(alone, _ALONE, args, ground, {})
        if nodes:
            launchers = [*ground.mine, *references(args.references)]
            _case(launch, launchers, args, ground, {"left_out": ground.left_out})
        if "preload" in args.cases and args.collectives:
            for workers in dict.fromkeys((_ONE_NODE_WORKERS, args.full_node)):
                _preload_case(dataclasses.replace(launch, nodes=1, workers=workers), args, ground)
        ground.output.end(_CAPTION.format(remarks=ground.remarks) + _compiled())
    return 0


def _case(
    launch: Launch, launchers: Sequence[Launcher], args: Namespace, ground: JobGround, details: Mapping[str, Any]
) -> None:
    """Run the launches without torch in turns, and then those with it."""
    case = JobCase(_name(launch), ground, launchers)
    light = case.turns(
        lambda launcher: launch.run(launcher, collective=False), repeats=args.repeats, warm_up=not args.quick
    )
    # no warm-up: agents read torch, too, so by now all is in memory except what only the workers read of it
    heavy = _collectives(case, launch, args, warm_up=False)
    points: list[Point] = []
    for figure, about in _FIGURES.items():
        turns, of = (heavy, _WITH_TORCH[figure]) if figure in _WITH_TORCH else (light, figure)
        leads = figure in ("first_line", "first_collective")
        points += case.points(turns, figure, about, attrgetter(of), leads=leads)
    cpu = {name: [round(sample.total_cpu, 2) for sample in samples] for name, samples in heavy.samples.items()}
    case.write(points, {**details, "collective_cpu_s": cpu})


def _preload_case(launch: Launch, args: Namespace, ground: JobGround) -> None:
    """Workers that import torch: of launchers without any rendezvous flag, and of one that imports it for them."""
    case = JobCase(f"{_name(launch)} with torch", ground, [preloading(_ALONE[0], "torch"), *_ALONE])
    turns = _collectives(case, launch, args, warm_up=not args.quick)
    points: list[Point] = []
    for figure, of in _WITH_TORCH.items():
        points += case.points(turns, figure, _FIGURES[figure], attrgetter(of), leads=figure == "first_collective")
    case.write(points, {})


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


@dataclass
class LaunchSample:
    """The figures of one launch, in seconds and MiB; see the caption."""

    first_line: float = 0.0
    all_lines: float = 0.0
    """The time from the start of the agents to the line of the very last worker."""
    agent_cpu: float = 0.0
    job_cpu: float = 0.0
    """CPU time of all the job's processes, with workers and what preloads for them, until the last worker's line."""
    agent_peak: float = 0.0
    ending: float = 0.0
    total_cpu: float = 0.0


@dataclass(frozen=True)
class Launch:
    """What is launched, the same for all targets."""

    nodes: int
    workers: int
    worker: Path
    guard: Guard
    limit_s: float

    def run(self, launcher: Launcher, *, collective: bool) -> LaunchSample:
        """Launch once. Raises ``JobFailed`` if it fails, or takes longer than the limit."""
        sample = LaunchSample()
        service_cpu = launcher.service_cpu()
        mark, directory = self.guard.new_job()
        meeting = meet(launcher, directory)
        variables = environment(mark) | {"GLOO_SOCKET_IFNAME": "lo"} | {**launcher.environment}
        script = [self.worker, *(["collective"] if collective else [])]
        commands = [meeting.command(node, str(self.nodes), self.workers, script) for node in range(self.nodes)]
        with tempfile.TemporaryFile() as stderr:
            agents: list[subprocess.Popen[bytes]] = []
            start = time.perf_counter()
            try:
                for command in commands:
                    agents.append(
                        subprocess.Popen(
                            command,
                            stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE,
                            stderr=stderr,
                            env=variables,
                            cwd=self.guard.directory,
                            preexec_fn=default_signals,
                        )
                    )
                self._wait_workers(agents, start, sample, lambda: launcher.service_cpu() - service_cpu)
                self._wait_end(agents, sample)
                sample.total_cpu += launcher.service_cpu() - service_cpu
                if any(agent.returncode for agent in agents):
                    raise DidNotFinish(f"exit codes {[agent.returncode for agent in agents]}")
            except DidNotFinish as error:
                stderr.seek(0)
                raise JobFailed(str(error), last_words(stderr.read().decode(errors="replace"))) from None
            finally:
                _stop(agents)
                end_all(mark)
        return sample

    def _wait_workers(
        self,
        agents: list[subprocess.Popen[bytes]],
        start: float,
        sample: LaunchSample,
        service_cpu: Callable[[], float],
    ) -> None:
        """Wait until every worker has spoken, and read the figures when the last node's first worker has.

        ``service_cpu`` returns the seconds used by the service that they dial, since the start.
        """
        said = dict.fromkeys(range(len(agents)), b"")
        with selectors.DefaultSelector() as selector:
            for node, agent in enumerate(agents):
                selector.register(_open(agent.stdout), selectors.EVENT_READ, node)
            while min(text.count(LINE) for text in said.values()) < self.workers:
                ready = selector.select(max(0.0, start + self.limit_s - time.perf_counter()))
                now = time.perf_counter()
                if not ready:
                    raise DidNotFinish(f"the workers did not start within {self.limit_s:g} s")
                for key, _ in ready:
                    text = os.read(key.fd, 4096)
                    if not text:
                        raise DidNotFinish("an agent ended before its workers had started")
                    said[key.data] += text
                if not sample.first_line and all(LINE in text for text in said.values()):
                    sample.first_line = now - start
                    sample.agent_cpu = sum(cpu_seconds(agent.pid) for agent in agents) + service_cpu()
                sample.all_lines = now - start
        sample.job_cpu = sum(family_cpu_seconds(agent.pid) for agent in agents) + service_cpu()

    def _wait_end(self, agents: list[subprocess.Popen[bytes]], sample: LaunchSample) -> None:
        """Let the workers end, and watch the agents' memory until they have ended, too."""
        peaks = dict.fromkeys((agent.pid for agent in agents), 0.0)
        start = time.perf_counter()
        alive = list(agents)
        while alive:
            for agent in list(alive):
                peaks[agent.pid] = peak_memory(agent.pid) or peaks[agent.pid]
                if agent.stdin and not agent.stdin.closed:
                    agent.stdin.close()
                pid, status, usage = os.wait4(agent.pid, os.WNOHANG)
                if pid:
                    agent.returncode = os.waitstatus_to_exitcode(status)
                    sample.total_cpu += usage.ru_utime + usage.ru_stime
                    alive.remove(agent)
            if alive and time.perf_counter() > start + self.limit_s:
                raise DidNotFinish(f"the agents did not end within {self.limit_s:g} s after their workers")
            time.sleep(_SAMPLE_EVERY_S if alive else 0)
        sample.ending = time.perf_counter() - start
        sample.agent_peak = max(peaks.values())


def _stop(agents: list[subprocess.Popen[bytes]]) -> None:
    """End what is left after an error, and close the pipes: workers end with their standard input."""
    for agent in agents:
        _open(agent.stdin).close()
        agent.terminate()  # does nothing to one that has been waited for
    for agent in agents:
        try:
            agent.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
        _open(agent.stdout).close()


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "started with a pipe"
    return stream
