"""``rdzv bench launch``: how long until the workers speak, and what the agent costs, beside torchrun."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.bench import launch_worker
from launcher.bench.backends import Candidate, start
from launcher.bench.launch_guard import Guard
from launcher.bench.launch_processes import Launch, Sample
from launcher.bench.launch_targets import JobFailed, Target, about_etcd, ours, references, require_launchers
from launcher.bench.output import Output
from launcher.bench.points import Point
from launcher.bench.store_names import hosts_file_only
from launcher.bench.turns import Turns, take_turns

CASES = ("one-node", "nodes")
_ONE_NODE_WORKERS = 2
_FIGURES = {
    "first_line": ("time to the first line", "s"),
    "first_collective": ("time to the first collective", "s"),
    "agent_cpu": ("CPU of agents and service until then", "s"),
    "agent_peak": ("peak memory of an agent", "MiB"),
    "ending": ("time to the end", "s"),
    "total_cpu": ("CPU of agents, service and workers", "s"),
}
_CAPTION = """\
Ratios are the median of those of the turns, to torchrun in the same turn.
  first line        from the start of the agents to the first line of a worker, on the last node to have one
  first collective  from the start of the agents to the end of the first all_reduce, over gloo, of all workers, which
                    import torch; these are runs of their own: in the others the workers do not
  CPU until then    of the agents and of a service that they dial, if it was started here (etcd), up to the first line:
                    user and system, all nodes added up
  peak memory       largest resident memory of the agent itself over its whole life (the larger, of several)
  time to the end   from letting the workers end to the end of the last agent
  CPU, whole        of the agents over their whole life, of the service meanwhile, and of the workers: wait4 counts
                    children that were waited for
Nodes are agents on this machine which share its processors, and meet at 127.0.0.1; --local-addr says so to all of them.
{etcd}{names}torchrun also loads the entry point of rdzv-plugins, because it is installed beside it."""
_HOSTS_FILE = """\
All of them, torch's too, see names from a hosts file alone: what slow DNS costs torchrun on real networks, where its
store looks up the name of each client, does not show here.
"""
_SYSTEM_NAMES = """\
Names come from the system, as no mount namespace was allowed: torch's store looks up the name of each client, and
that may cost those seconds who use it (torchrun; static and c10d for their own store).
"""


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    cases: tuple[str, ...]
    nodes: int
    workers: int
    references: str
    repeats: int
    collectives: int
    """Runs with workers that import torch; 0: none."""
    limit_s: float
    warm_up: bool


def run(settings: Settings, candidates: list[Candidate], output: Output, *, asked_for: bool) -> int:
    """Measure every case and print the figures; returns the exit code. Raises ``RdzvError``.

    ``asked_for``: the backends were named by the user. ``output`` is entered and left here.
    """
    require_launchers()
    with Guard() as guard, ExitStack() as running:
        everyone = [*candidates]
        left_out = start(candidates, running, asked_for=asked_for) if "nodes" in settings.cases else {}
        running.enter_context(output)  # its file is made here: none is left where something is missing that is needed
        for name, why in left_out.items():
            output.progress.say(f"without {name}: {why}")
        worker = Path(shutil.copy(str(launch_worker.__file__), guard.directory / "launch_worker.py"))
        apart = hosts_file_only(guard.directory)
        launch = Launch(settings.nodes, settings.workers, worker, guard, apart or [], settings.limit_s)
        details = {"names": "from a hosts file alone" if apart is not None else "as the system has them"}
        if "one-node" in settings.cases:
            alone = dataclasses.replace(launch, nodes=1, workers=_ONE_NODE_WORKERS)
            plain = [Target(name, name, "") for name in ("rdzv-run", "torchrun")]
            _case(alone, plain, settings, output, {}, details)
        if "nodes" in settings.cases:
            targets = [*ours(everyone), *references(settings.references)]
            _case(launch, targets, settings, output, left_out, details | {"left_out": left_out})
        names = _HOSTS_FILE if apart is not None else _SYSTEM_NAMES
        output.end(_CAPTION.format(etcd=about_etcd(ours(candidates)), names=names) + _compiled())
    return 0


def _case(
    launch: Launch,
    targets: Sequence[Target],
    settings: Settings,
    output: Output,
    left_out: Mapping[str, str],
    details: dict[str, Any],
) -> None:
    """The runs without torch in turns, and then those with it."""
    case = _name(launch)
    by_name = {target.name: target for target in targets}
    given_up = {**left_out}
    words: dict[str, str] = {}

    def measure(name: str, collective: bool) -> Sample:
        try:
            return launch.run(by_name[name], collective=collective)
        except JobFailed as error:
            words[name] = error.words
            raise

    light = take_turns(
        case,
        list(by_name),
        lambda name, turn: measure(name, False),
        repeats=settings.repeats,
        progress=output.progress,
        warm_up=settings.warm_up,
        given_up=given_up,
    )
    heavy = take_turns(
        f"{case}, first collective",
        list(by_name),
        lambda name, turn: measure(name, True),
        repeats=settings.collectives,
        progress=output.progress,
        warm_up=False,  # by now everything is in memory but what only the workers read of torch, which the agents do
        given_up=given_up,
    )
    cpu = {name: [round(sample.total_cpu, 2) for sample in samples] for name, samples in heavy.samples.items()}
    output.case(
        case,
        _points(case, targets, light, heavy),
        details=details | {"collective_cpu_s": cpu, "last_words": words},
        notes=[f"{name}: {text}" for name, text in words.items()],
    )


def _name(launch: Launch) -> str:
    nodes = "one node" if launch.nodes == 1 else f"{launch.nodes} nodes"
    each = " each" if launch.nodes > 1 else ""
    return f"{nodes}, {launch.workers} worker{'s' if launch.workers > 1 else ''}{each}"


def _points(case: str, targets: Sequence[Target], light: Turns[Sample], heavy: Turns[Sample]) -> list[Point]:
    points = []
    for figure, (title, unit) in _FIGURES.items():
        turns = heavy if figure == "first_collective" else light
        for target in targets:
            samples = turns.samples[target.name]
            if not samples and figure not in ("first_line", "first_collective"):
                continue  # why there are none stands with the others
            if not samples and target.name not in turns.unfinished:
                continue  # --collectives=0
            points.append(
                Point(
                    bench="launch",
                    case=case,
                    target=target.name,
                    figure=figure,
                    title=title,
                    unit=unit,
                    samples=tuple(
                        sample.all_lines if figure == "first_collective" else getattr(sample, figure)
                        for sample in samples
                    ),
                    reference=target.reference,
                    unfinished=turns.unfinished.get(target.name, ""),
                )
            )
    return points


def _compiled() -> str:
    if not sys.dont_write_bytecode:
        return ""
    return "\nPYTHONDONTWRITEBYTECODE is set: Python modules that pip did not compile are compiled at every start."
