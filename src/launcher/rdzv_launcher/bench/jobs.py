"""Jobs as a whole, for ``rdzv bench launch`` and ``faults``: the launchers, and the steps from first check to caption.

The launchers are rdzv-run on any installed backend, and plain torchrun on torch's own beside it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import sysconfig
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from rdzv_launcher.bench.backends import TORCH_C10D, TORCH_STATIC, Candidate, start
from rdzv_launcher.bench.children import Guard, names_remark
from rdzv_launcher.bench.points import DidNotFinish, Point, Turns, take_turns
from rdzv_launcher.bench.readings import cpu_seconds
from rdzv_launcher.bench.results import Output, asked
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.harness import Harness, free_port

Sample = TypeVar("Sample")

_MOST_CHARACTERS = 300
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Launcher:
    """One way to launch a job."""

    name: str
    program: str
    """The launcher's command: ``rdzv-run`` or ``torchrun``."""
    backend: str
    """The name after ``--rdzv-backend``; empty for the launcher without any rendezvous flag."""
    conf: Mapping[str, str] = field(default_factory=dict)
    ranks: bool = False
    """Nodes are given their ranks."""
    elastic: bool = False
    """``--nnodes=MIN:MAX`` is respected."""
    several: bool = False
    """It takes several endpoints, and goes on at another one."""
    flags: tuple[str, ...] = ()
    """Additional flags of rdzv-run."""
    harness: Harness | None = None
    """The harness, which knows the endpoint; None for torch's own."""

    @property
    def reference(self) -> bool:
        """Whether this is torch's own launcher, with which the others are compared."""
        return self.program == "torchrun"

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for the agents, in addition to the others."""
        return self.harness.environment if self.harness is not None else _NOTHING

    def service_cpu(self) -> float:
        """CPU seconds so far of the service that the nodes dial; 0 if no harness has started one for all jobs."""
        service = self.harness.service if self.harness is not None else None
        return sum(cpu_seconds(pid) for pid in service.pids) if service is not None else 0.0


class JobFailed(DidNotFinish):
    """A job that did not get to where it should; ``words`` are its last ones."""

    def __init__(self, text: str, words: str) -> None:
        super().__init__(text)
        self.words = words


@dataclass(frozen=True)
class Meeting:
    """One job: what all of its nodes are told."""

    launcher: Launcher
    endpoint: str
    run_id: str

    def command(self, node: int, nnodes: str, workers: int, script: Sequence[object], *flags: str) -> list[str]:
        """The command line of one node's agent; its address is given, so that nobody looks up this machine's name."""
        launcher = self.launcher
        command = [str(_program(launcher.program)), f"--nproc-per-node={workers}", *launcher.flags, *flags]
        if launcher.backend:
            command += [f"--nnodes={nnodes}", f"--rdzv-backend={launcher.backend}", f"--rdzv-id={self.run_id}"]
            command += [f"--rdzv-endpoint={self.endpoint}", "--local-addr=127.0.0.1"]
        else:  # otherwise both listen on 29500, where somebody else may be
            command.append(f"--master-port={self.endpoint.rpartition(':')[2]}")
        if launcher.conf:
            command.append("--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in launcher.conf.items()))
        if launcher.ranks:
            command.append(f"--node-rank={node}")
        return [*command, *map(str, script)]


def meet(launcher: Launcher, directory: Path, endpoints: int = 1) -> Meeting:
    """A new job, which meets at this many endpoints; ``directory`` is empty, and belongs to this job alone."""
    if launcher.harness is None:
        endpoint = f"127.0.0.1:{free_port()}"
    elif endpoints == 1:
        endpoint = launcher.harness.endpoint(directory)
    else:
        endpoint = launcher.harness.endpoints(directory, endpoints)
    return Meeting(launcher, endpoint, f"bench-{uuid.uuid4().hex[:8]}")


def ours(candidate: Candidate) -> Launcher:
    """rdzv-run on this backend."""
    backend = candidate.entry.backend
    return Launcher(
        candidate.name,
        "rdzv-run",
        candidate.name,
        candidate.harness.conf,
        ranks=Capability.NODE_RANK in backend.capabilities,
        elastic=Capability.ELASTIC in backend.capabilities,
        several=Capability.SEVERAL_ENDPOINTS in backend.capabilities,
        harness=candidate.harness,
    )


def references(names: Sequence[str], c10d_conf: Mapping[str, str] = _NOTHING) -> list[Launcher]:
    """Plain torchrun on these of torch's own backends; ``c10d_conf``: its options of c10d."""
    launchers = {
        TORCH_STATIC: Launcher(TORCH_STATIC, "torchrun", "static", ranks=True),
        TORCH_C10D: Launcher(TORCH_C10D, "torchrun", "c10d", c10d_conf, elastic=True),
    }
    return [launchers[name] for name in names]


def preloading(launcher: Launcher, module: str) -> Launcher:
    """The same launcher with ``--preload=MODULE``."""
    flag = f"--preload={module}"
    return replace(launcher, name=f"{launcher.name} {flag}", flags=(*launcher.flags, flag))


def _program(name: str) -> Path:
    return Path(sysconfig.get_path("scripts")) / name


def last_words(text: str) -> str:
    """The last error that a launcher or a worker named, otherwise the last line."""
    said = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("bench {")]
    errors = [line for line in said if "error: " in line.lower()]
    return (errors or said or ["it has said nothing"])[-1][:_MOST_CHARACTERS]


@dataclass(frozen=True)
class JobGround:
    """What all jobs of one run have in common."""

    output: Output
    guard: Guard
    worker: Path
    """The script of every worker: a copy in a directory of its own.

    Python looks for modules beside a script first, and some of those here have the same names as parts of Python.
    """
    mine: Sequence[Launcher]
    """``rdzv-run`` on each requested backend, including those left out."""
    left_out: Mapping[str, str]
    """Why some of them cannot be measured, by name."""
    remarks: str
    """Lines for a caption: what is special about the services that were started, and about names."""


@contextmanager
def job_ground(
    args: argparse.Namespace, found: list[Candidate], worker: str, *, services: bool = True
) -> Iterator[JobGround]:
    """Check, start what the candidates need (unless ``services`` is false), open the output; all ends with the block.

    ``worker``: the name of the workers' script. Raises ``RdzvError``; then no file is made.
    """
    for program in ("rdzv-run", "torchrun"):
        if not _program(program).exists():
            raise RdzvError(f"there is no {program} beside {sys.executable}", remedy="Install torch and rdzv-plugins.")
    options = asked(args, backends={each.name: dict(each.harness.conf) for each in found})
    output = Output(args, options, dict(each.version for each in found))
    with Guard() as guard, ExitStack() as running:
        everyone = [*found]
        left_out = start(found, running, asked_for=args.backends is not None) if services else {}
        running.enter_context(output)  # its file is created here, so none is left if something necessary is missing
        for name, why in left_out.items():
            output.progress.say(f"without {name}: {why}")
        remarks = [each.harness.remark for each in found if each.harness.remark]
        yield JobGround(
            output=output,
            guard=guard,
            worker=Path(shutil.copy(Path(__file__).with_name(worker), guard.directory / "worker.py")),
            mine=[ours(each) for each in everyone],
            left_out=left_out,
            remarks="\n".join([*remarks, names_remark()]),
        )


class JobCase:
    """One case: launchers that take turns, and the last words of jobs that failed."""

    def __init__(self, name: str, ground: JobGround, launchers: Sequence[Launcher]) -> None:
        self.name, self._ground = name, ground
        self._by_name = {launcher.name: launcher for launcher in launchers}
        self._given_up = {name: why for name, why in ground.left_out.items() if name in self._by_name}
        self._words: dict[str, str] = {}

    def turns(self, run: Callable[[Launcher], Sample], *, repeats: int, warm_up: bool, more: str = "") -> Turns[Sample]:
        """``run`` for each launcher in turns, but not again for one that failed. ``more``: added to the case's name."""

        def measure(name: str, turn: int) -> Sample:
            try:
                return run(self._by_name[name])
            except JobFailed as error:
                self._words[name] = error.words
                raise

        return take_turns(
            self.name + more,
            [*self._by_name],
            measure,
            repeats=repeats,
            progress=self._ground.output.progress,
            warm_up=warm_up,
            given_up=self._given_up,
        )

    def points(
        self, turns: Turns[Sample], figure: str, about: tuple[str, str], of: Callable[[Sample], float], *, leads: bool
    ) -> Iterator[Point]:
        """One figure of each launcher; ``about`` is its title and unit.

        ``leads``: it also says why there are no samples; such a launcher has no points of the other figures.
        """
        for name, launcher in self._by_name.items():
            samples, unfinished = turns.samples[name], turns.unfinished.get(name, "")
            if samples or (leads and unfinished):
                yield Point(
                    self._ground.output.bench,
                    self.name,
                    name,
                    figure,
                    *about,
                    samples=tuple(map(of, samples)),
                    reference=launcher.reference,
                    unfinished=unfinished,
                )

    def write(self, points: Sequence[Point], details: Mapping[str, Any], notes: Sequence[str] = ()) -> None:
        """Write the case once all is measured; ``details`` and ``notes`` are added to what every such case has."""
        words = [f"{name}: {text}" for name, text in self._words.items()]
        self._ground.output.case(
            self.name, points, details={**details, "last_words": self._words}, notes=[*notes, *words]
        )
