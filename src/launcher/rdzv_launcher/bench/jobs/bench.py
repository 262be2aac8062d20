"""A benchmark of whole jobs, from the first check to the caption: what ``launch`` and ``faults`` share."""

from __future__ import annotations

import shutil
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from rdzv_launcher.bench.backends import Candidate, start
from rdzv_launcher.bench.jobs.launchers import JobFailed, Launcher, ours, references, require_launchers
from rdzv_launcher.bench.method.points import Point
from rdzv_launcher.bench.method.turns import Turns, take_turns
from rdzv_launcher.bench.processes.guard import Guard
from rdzv_launcher.bench.processes.names import hosts_file_only
from rdzv_launcher.bench.report.output import Output

Sample = TypeVar("Sample")

_NAMES_APART = """\
All of them, torch's too, see names from a hosts file alone: what slow DNS costs torchrun on real networks, where its
store looks up the name of each client, does not show here.
"""
_NAMES_OF_THE_SYSTEM = """\
Names come from the system, as no mount namespace was allowed: torch's store looks up the name of each client, and
that may cost those seconds who use it (torchrun; static and c10d for their own store).
"""


@dataclass(frozen=True)
class JobGround:
    """What all jobs of one run have in common."""

    output: Output
    guard: Guard
    worker: Path
    """The script of every worker: a copy in a directory of its own."""
    before: Sequence[str]
    """What goes in front of each agent's command."""
    mine: Sequence[Launcher]
    """``rdzv-run`` on each requested backend, including those left out."""
    left_out: Mapping[str, str]
    """Why some of them cannot be measured, by name."""
    remarks: str
    """Lines for a caption: what is special about the services that were started, and about names."""

    def launchers(self, names: str, c10d_conf: Mapping[str, str]) -> list[Launcher]:
        """``mine``, and torch's own launchers that ``names`` selects; ``c10d_conf`` is their options of c10d."""
        return [*self.mine, *references(names, c10d_conf)]

    @property
    def details(self) -> dict[str, Any]:
        """The details that are kept beside the figures of each case."""
        return {"names": "from a hosts file alone" if self.before else "as the system has them"}


@contextmanager
def job_ground(
    output: Output, candidates: list[Candidate], worker: ModuleType, *, asked_for: bool, services: bool = True
) -> Iterator[JobGround]:
    """Check, start what the candidates need (unless ``services`` is false), open ``output``; all ends with the block.

    ``asked_for``: the backends were named by the user. Raises ``RdzvError``; then no file of ``output`` is made.
    """
    require_launchers()
    with Guard() as guard, ExitStack() as running:
        everyone = [*candidates]
        left_out = start(candidates, running, asked_for=asked_for) if services else {}
        running.enter_context(output)  # its file is created here, so none is left if something necessary is missing
        for name, why in left_out.items():
            output.progress.say(f"without {name}: {why}")
        before = hosts_file_only(guard.directory)
        remarks = [f"{each.harness.remark}\n" for each in candidates if each.harness.remark]
        yield JobGround(
            output=output,
            guard=guard,
            worker=Path(shutil.copy(str(worker.__file__), guard.directory / "worker.py")),
            before=before or [],
            mine=ours(everyone),
            left_out=left_out,
            remarks="".join([*remarks, _NAMES_OF_THE_SYSTEM if before is None else _NAMES_APART]),
        )


def job_output(bench: str, settings: Any, args: Namespace, candidates: Sequence[Candidate]) -> Output:
    """Where the figures of such a benchmark go; its manifest has the options that each backend gets."""
    options = {"backends": {each.name: dict(each.harness.conf) for each in candidates}, **asdict(settings)}
    plugins = dict(each.version for each in candidates)
    return Output(bench, options, as_json=args.json, out=args.out, plugins=plugins)


class JobCase:
    """One case: launchers that take turns, and the last words of jobs that failed."""

    def __init__(self, bench: str, name: str, ground: JobGround, launchers: Sequence[Launcher]) -> None:
        self._bench, self.name, self._ground = bench, name, ground
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
                    self._bench,
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
        about = {**self._ground.details, **details, "last_words": self._words}
        self._ground.output.case(self.name, points, details=about, notes=[*notes, *words])
