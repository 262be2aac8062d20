"""``rdzv bench faults``: how long a job needs to go on after something was killed or frozen, beside torchrun."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.bench import faults_worker
from launcher.bench.backends import Candidate, start
from launcher.bench.faults_job import How
from launcher.bench.faults_kinds import Fault, Sample, cases, inflict
from launcher.bench.launch_guard import Guard
from launcher.bench.launch_targets import JobFailed, Target, about_etcd, ours, references, require_launchers
from launcher.bench.output import Output
from launcher.bench.points import Point
from launcher.bench.signs_of_life import KEEP_ALIVES, keep_alive_s, signs_of_life
from launcher.bench.store_names import hosts_file_only
from launcher.bench.turns import Turns, take_turns

_FIGURES = {
    "recover": ("time to the next collective", "s"),
    "restarted": ("time to the start of the new workers", "s"),
    "cpu": ("CPU of agents and service", "s"),
}
_CAPTION = """\
{nodes} agents on this machine, each with a worker that is always in an all_reduce over gloo; then something happens.
  time to the next collective           from then to the end of the first all_reduce of the next round, on all its nodes
  time to the start of the new workers  as far as the launcher can do something: what follows, importing torch and
                                        joining the gloo group, is the script's, and the same for all
  CPU                                   meanwhile, of the agents that go on and of a service that they dial, if it was
                                        started here; a new agent's holds its import of torch
A job whose backend is elastic (--nnodes={least}:{nodes}) goes on without a node that is lost. Others cannot: there the
benchmark starts the same command again at the moment of the fault, and the new agent is waited for. That is another way
to go on, so it makes cases of its own, and there are no ratios between the two. Killed or frozen are the agent and its
worker, as when a machine goes. The store's host is the node that serves the endpoint, or rank 0's where none does. All
agents have --max-restarts=100 and --local-addr=127.0.0.1.
Who notices what: gloo, at once, that the process of a peer has gone, and after {timeout:g} s that one is silent
(torch's default is 1800); an agent, that its worker has failed; a backend with sessions, that a node's connection has
ended, or that it has been silent for {ttl} s; c10d, ours and torch's, that {attempts} keep-alives are missing, of one
every {keep_alive} s. A new round of c10d waits for {last_call} s for more nodes once it has {least} (torch: 30).
{etcd}{names}"""
_HOSTS_FILE = "All see names from a hosts file alone: slow DNS, which stalls torch's store, does not show here."
_SYSTEM_NAMES = (
    "Names come from the system, as no mount namespace was allowed: torch's store looks up the name of each client, "
    "which\nmay cost torchrun seconds."
)
LAST_CALL_S = 2


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    faults: tuple[str, ...]
    nodes: int
    references: str
    repeats: int
    ttl: int
    collective_timeout_s: float
    limit_s: float


def c10d_conf(ttl: int) -> dict[str, str]:
    """Options of c10d, ours and torch's, that make it notice a silent node as late as the others do."""
    return {**signs_of_life(ttl), "last_call_timeout": str(LAST_CALL_S)}


def wanted_conf(ttl: int) -> dict[str, str]:
    """Options for whichever backend has them."""
    return {"ttl": str(ttl), **c10d_conf(ttl)}


def run(settings: Settings, candidates: list[Candidate], output: Output, *, asked_for: bool) -> int:
    """Measure every fault and print the figures; returns the exit code. Raises ``RdzvError``.

    ``asked_for``: the backends were named by the user. ``output`` is entered and left here.
    """
    require_launchers()
    with Guard() as guard, ExitStack() as running:
        everyone = [*candidates]
        left_out = start(candidates, running, asked_for=asked_for)
        running.enter_context(output)  # its file is made here: none is left where something is missing that is needed
        for name, why in left_out.items():
            output.progress.say(f"without {name}: {why}")
        apart = hosts_file_only(guard.directory)
        how = How(
            nodes=settings.nodes,
            worker=Path(shutil.copy(str(faults_worker.__file__), guard.directory / "faults_worker.py")),
            guard=guard,
            before=apart or [],
            limit_s=settings.limit_s,
            start_limit_s=max(2 * settings.limit_s, 120.0),
            collective_timeout_s=settings.collective_timeout_s,
        )
        targets = [*ours(everyone), *references(settings.references, c10d_conf(settings.ttl))]
        names = "from a hosts file alone" if apart is not None else "as the system has them"
        for fault, hit in cases(settings.faults, targets).items():
            _case(fault, how, hit, settings, output, left_out, {"names": names, "left_out": left_out})
        output.end(
            _CAPTION.format(
                nodes=settings.nodes,
                least=settings.nodes - 1,
                ttl=settings.ttl,
                keep_alive=keep_alive_s(settings.ttl),
                attempts=KEEP_ALIVES,
                last_call=LAST_CALL_S,
                timeout=settings.collective_timeout_s,
                etcd=about_etcd(ours(candidates)),
                names=_HOSTS_FILE if apart is not None else _SYSTEM_NAMES,
            )
        )
    return 0


def _case(
    fault: Fault,
    how: How,
    targets: Sequence[Target],
    settings: Settings,
    output: Output,
    left_out: Mapping[str, str],
    details: dict[str, Any],
) -> None:
    by_name = {target.name: target for target in targets}
    words: dict[str, str] = {}

    def measure(name: str, turn: int) -> Sample:
        try:
            return inflict(how, fault, by_name[name])
        except JobFailed as error:
            words[name] = error.words
            raise

    turns = take_turns(
        fault.case,
        list(by_name),
        measure,
        repeats=settings.repeats,
        progress=output.progress,
        warm_up=False,  # each run has its own before the fault: the job's start
        given_up={**left_out},
    )
    runs = {target.name: [_run(sample) for sample in turns.samples[target.name]] for target in targets}
    output.case(
        fault.case,
        _points(fault, targets, turns),
        details=details | {"way": fault.way(how.nodes), "runs": runs, "last_words": words},
        notes=[*_starts(turns), *(f"{name}: {text}" for name, text in words.items())],
    )


def _starts(turns: Turns[Sample]) -> list[str]:
    """Who needed more than one attempt."""
    counts = {name: [sample.starts for sample in samples] for name, samples in turns.samples.items()}
    return [
        f"{name}: its workers were started {', '.join(map(str, each))} times until a collective went well"
        for name, each in counts.items()
        if any(count > 1 for count in each)
    ]


def _run(sample: Sample) -> dict[str, Any]:
    return {
        "rank": sample.victim_rank,
        "served": sample.served,
        "nodes_after": sample.nodes_after,
        "starts": sample.starts,
    }


def _points(fault: Fault, targets: Sequence[Target], turns: Turns[Sample]) -> list[Point]:
    return [
        Point(
            bench="faults",
            case=fault.case,
            target=target.name,
            figure=figure,
            title=title,
            unit=unit,
            samples=tuple(getattr(sample, figure) for sample in turns.samples[target.name]),
            reference=target.reference,
            unfinished=turns.unfinished.get(target.name, ""),
        )
        for figure, (title, unit) in _FIGURES.items()
        for target in targets
        if figure == "recover" or turns.samples[target.name]  # why there are none stands once
    ]
