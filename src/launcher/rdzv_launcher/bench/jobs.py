"""Jobs as a whole, for ``rdzv bench launch`` and ``faults``: launchers, a real job of agents, and the cases of a run.

The launchers are rdzv-run on any installed backend, and plain torchrun on torch's own beside it.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from rdzv_launcher.bench import backends
from rdzv_launcher.bench.backends import Candidate
from rdzv_launcher.bench.children import Guard, end_all, environment, names_remark
from rdzv_launcher.bench.job_worker import PREFIX
from rdzv_launcher.bench.points import DidNotFinish, Point, points_of, take_turns
from rdzv_launcher.bench.results import BenchOutput
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.harness import NOTHING, Harness
from rdzv_plugins.testing.processes import default_signals, marked, send

JobSample: TypeAlias = Mapping[str, Any]
"""The figures of one job by name, and what else is known of it."""

COLLECTIVE_TIMEOUT_S = 20.0
"""gloo's, after which a worker gives a silent peer up by itself, where something is to happen to its peer."""
_TORCH_S_TIMEOUT_S = 1800.0
_MOST_CHARACTERS = 300
_LOOK_EVERY_S = 0.02
_ENDS_WITHIN_S = 0.002
"""How exactly an end is timed: ``Popen.wait`` with a limit looks every 50 ms only, in the end."""
_END_S = 30.0
_SAID = re.compile(rf"^{PREFIX}(\{{.*\}})$", re.MULTILINE)
WORKER = Path(__file__).with_name("job_worker.py")
"""The script of every worker, of which each job has a copy."""


@dataclass(frozen=True)
class Launcher:
    """One way to launch a job."""

    name: str
    program: str
    """The launcher's command: ``rdzv-run`` or ``torchrun``."""
    rendezvous: Candidate | None = None
    """By what its nodes meet; None for the launcher without any rendezvous flag."""
    conf: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    """Additional flags of rdzv-run."""

    @property
    def harness(self) -> Harness:
        """It knows the endpoint: unless said otherwise, any port of loopback."""
        return Harness() if self.rendezvous is None else self.rendezvous.harness

    @property
    def reference(self) -> bool:
        """Whether this is torch's own launcher, with which the others are compared."""
        return self.program == "torchrun"

    def has(self, capability: Capability) -> bool:
        return self.rendezvous is not None and capability in self.rendezvous.capabilities


class JobFailed(DidNotFinish):
    """A job that did not get to where it should; ``words`` are its last ones."""

    def __init__(self, text: str, words: str) -> None:
        super().__init__(text)
        self.words = words


class Job:
    """A job of agents on this machine, and what its workers say. A context manager: no process outlives it.

    For one thread.
    """

    def __init__(
        self, guard: Guard, launcher: Launcher, nnodes: str, workers: int, mode: str, *, endpoints: int = 1
    ) -> None:
        """``mode``: what the workers do, see ``job_worker``. The first of several ``endpoints`` serves at first."""
        self._mark, self._directory = guard.new_job()
        self.endpoint = _endpoint(launcher, self._directory, endpoints)
        self._flags = [*launcher.flags, f"--nproc-per-node={workers}"]
        timeout_s = _TORCH_S_TIMEOUT_S
        if mode == "endless":  # something is to happen to it
            self._flags.append("--max-restarts=100")
            timeout_s = COLLECTIVE_TIMEOUT_S
        if launcher.rendezvous is not None:
            self._flags += [f"--nnodes={nnodes}", f"--rdzv-backend={launcher.rendezvous.backend}"]
            self._flags += [f"--rdzv-id=bench-{uuid.uuid4().hex[:8]}", f"--rdzv-endpoint={self.endpoint}"]
            self._flags.append("--local-addr=127.0.0.1")  # so that nobody looks up this machine's name
        else:  # otherwise both listen on 29500, where somebody else may be
            self._flags.append(f"--master-port={self.endpoint.rpartition(':')[2]}")
        if launcher.conf:
            self._flags.append("--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in launcher.conf.items()))
        worker = shutil.copy(WORKER, self._directory / "worker.py")
        self._launcher, self._script = launcher, [str(worker), mode, str(timeout_s)]
        self.agents: list[subprocess.Popen[bytes]] = []
        """The agents by node; one that was started in place of another comes at the end."""

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        end_all(self._mark)
        for agent in self.agents:
            self.let_end(agent)
            agent.wait(_END_S)

    def command(self, node: int) -> list[str]:
        """The command line of one node's agent."""
        ranks = [f"--node-rank={node}"] if self._launcher.has(Capability.NODE_RANK) else []
        return [str(_program(self._launcher.program)), *self._flags, *ranks, *self._script]

    def start_agent(self, node: int) -> int:
        """Start the command of ``node``, also once more; returns its place in ``agents``."""
        place = len(self.agents)
        variables = environment(self._mark_of(place)) | {"GLOO_SOCKET_IFNAME": "lo"}
        with self._output(place).open("wb") as file:
            agent = subprocess.Popen(
                self.command(node),
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**variables, **self._launcher.harness.environment},
                cwd=self._directory,
                preexec_fn=default_signals,
            )
        self.agents.append(agent)
        return place

    def let_end(self, agent: subprocess.Popen[bytes]) -> None:
        """End the standard input of an agent, and so of its workers, which may end then."""
        assert agent.stdin is not None, "started with a pipe"
        agent.stdin.close()

    def signal_node(self, node: int, number: signal.Signals) -> None:
        """Send a signal to an agent and then to all that it has started, as when a machine fails."""
        agent = self.agents[node].pid
        for pid in [agent, *(each for each in marked(self._mark_of(node), parts=True) if each != agent)]:
            send(pid, number)

    def said(self, node: int) -> list[dict[str, Any]]:
        """What the workers of the agent at this place have said."""
        return [json.loads(found) for found in _SAID.findall(self._text(node))]

    def wait(self, condition: Callable[[], Any], nodes: Iterable[int], begun: float, limit_s: float, what: str) -> Any:
        """Wait until the condition is true, which it cannot become without all of ``nodes``. Raises ``JobFailed``."""
        needed = sorted(nodes)
        while not (value := condition()):
            for node in needed:
                code = self.agents[node].poll() if node < len(self.agents) else None
                if code is not None:
                    raise JobFailed(f"{what}: exit code {code} of node {node}", self.last_words(node))
            if time.monotonic() > begun + limit_s:
                raise JobFailed(f"{what} within {limit_s:g} s", self.last_words(needed[0]))
            time.sleep(_LOOK_EVERY_S)
        return value

    def ends(self, deadline: float) -> list[int]:
        """The exit codes of all agents, once they have ended. Raises ``JobFailed``."""
        while any(agent.poll() is None for agent in self.agents):
            if time.monotonic() > deadline:
                raise JobFailed("the agents did not end after their workers", self.last_words(0))
            time.sleep(_ENDS_WITHIN_S)
        return [agent.poll() or 0 for agent in self.agents]

    def last_words(self, place: int) -> str:
        """The last error that this agent or a worker of it named, otherwise the last line."""
        said = [line.strip() for line in self._text(place).splitlines() if line.strip() and not _SAID.match(line)]
        errors = [line for line in said if "error: " in line.lower()]
        return (errors or said or ["no output"])[-1][:_MOST_CHARACTERS]

    def _mark_of(self, place: int) -> str:
        return f"{self._mark}-{place}"

    def _output(self, place: int) -> Path:
        return self._directory / f"agent{place}.log"

    def _text(self, place: int) -> str:
        return self._output(place).read_text(errors="replace")


def _endpoint(launcher: Launcher, directory: Path, count: int) -> str:
    """That of a new job, or so many of them."""
    meeting = directory / "meeting"
    meeting.mkdir()
    return launcher.harness.endpoint(meeting) if count == 1 else launcher.harness.endpoints(meeting, count)


def launcher_of(candidate: Candidate, conf: Mapping[str, str]) -> Launcher:
    """rdzv-run on this backend, or plain torchrun on torch's own, with these options."""
    return Launcher(candidate.name, "torchrun" if candidate.reference else "rdzv-run", candidate, conf)


def references(names: Sequence[str], c10d_conf: Mapping[str, str] = NOTHING) -> list[Launcher]:
    """Plain torchrun on these of torch's own backends; ``c10d_conf``: its options of c10d."""
    return [launcher_of(each, c10d_conf if each.elastic else NOTHING) for each in backends.references(names)]


def preloading(launcher: Launcher, module: str) -> Launcher:
    """The same launcher with ``--preload=MODULE``."""
    flag = f"--preload={module}"
    return replace(launcher, name=f"{launcher.name} {flag}", flags=(*launcher.flags, flag))


def _program(name: str) -> Path:
    return Path(sysconfig.get_path("scripts")) / name


@dataclass(frozen=True)
class JobBench:
    """One run of a benchmark: where its jobs run, of whom, and where figures go."""

    output: BenchOutput
    guard: Guard
    mine: Sequence[Launcher]
    """``rdzv-run`` on each requested backend."""
    remarks: str
    """Lines for a caption: what is special about the services that were started, and about names."""


@contextmanager
def job_bench(args: argparse.Namespace, found: list[Candidate]) -> Iterator[JobBench]:
    """Check, start what the candidates need, open the output; all ends with the block.

    Raises ``RdzvError``; then no file is made.
    """
    for program in ("rdzv-run", "torchrun"):
        if not _program(program).exists():
            raise RdzvError(f"no {program} next to {sys.executable}", remedy="Install torch and rdzv-plugins.")
    confs = {each.name: each.harness.conf for each in found}
    output = BenchOutput(args, dict(each.version for each in found), backends=confs)
    with Guard() as guard, ExitStack() as running:
        backends.start(found, running)
        running.enter_context(output)  # its file is created here, so none is left if something necessary is missing
        remarks = [each.harness.remark for each in found if each.harness.remark]
        mine = [launcher_of(each, each.harness.conf) for each in found]
        yield JobBench(output, guard, mine, "\n".join([*remarks, names_remark()]))


class JobCase:
    """One case: launchers that take turns, and the last words of jobs that failed."""

    def __init__(self, name: str, output: BenchOutput, launchers: Sequence[Launcher]) -> None:
        self.name, self._output = name, output
        self._by_name = {launcher.name: launcher for launcher in launchers}
        self._given_up: dict[str, str] = {}
        self._words: dict[str, str] = {}
        self._points: list[Point] = []

    def measure(
        self,
        run: Callable[[Launcher], JobSample],
        figures: Mapping[str, tuple[str, str]],
        *,
        repeats: int,
        warm_up: bool = False,
        more: str = "",
    ) -> Mapping[str, Sequence[JobSample]]:
        """``run`` for each launcher in turns, but not again for one that failed; returns the samples.

        ``figures``: title and unit of those of a sample that are taken. The first also says why there are no samples;
        such a launcher has no points of the other figures. ``more``: added to the case's name.
        """

        def once(name: str, turn: int) -> JobSample:
            try:
                return run(self._by_name[name])
            except JobFailed as error:
                self._words[name] = error.words
                raise

        turns = take_turns(
            self.name + more,
            [*self._by_name],
            once,
            repeats=repeats,
            begins=self._output.begins,
            warm_up=warm_up,
            given_up=self._given_up,
        )
        first, theirs = next(iter(figures)), {name for name, each in self._by_name.items() if each.reference}
        points = points_of(self._output.bench, self.name, figures, turns, theirs)
        self._points += [each for each in points if each.samples or (each.unfinished and each.figure == first)]
        return turns.samples

    def write(self, details: Mapping[str, Any], notes: Sequence[str] = ()) -> None:
        """Write the case once all is measured; ``details`` and ``notes`` are added to what every such case has."""
        words = [f"{name}: {text}" for name, text in self._words.items()]
        about = {**details, "last_words": self._words}
        self._output.case(self.name, self._points, details=about, notes=[*notes, *words])
