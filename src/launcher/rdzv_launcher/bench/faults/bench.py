"""``rdzv bench faults``: how long a job needs to go on after something was killed or frozen, beside torchrun."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from rdzv_launcher.bench.backends import Candidate, candidates
from rdzv_launcher.bench.faults import worker
from rdzv_launcher.bench.faults.job import JobsAlike
from rdzv_launcher.bench.faults.kinds import Fault, FaultSample, cases, inflict
from rdzv_launcher.bench.faults.settings import FaultsSettings
from rdzv_launcher.bench.jobs.bench import JobCase, JobGround, job_ground, job_output
from rdzv_launcher.bench.jobs.launchers import Launcher, preloading
from rdzv_launcher.bench.method.points import Point
from rdzv_launcher.bench.method.turns import Turns
from rdzv_launcher.bench.report.output import Output

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
worker, as when a machine goes. The store's host is the node that serves the endpoint, or rank 0's where none does.
Three endpoints are a case for backends that take several: the job goes on at another one. All agents have
--max-restarts=100 and --local-addr=127.0.0.1.
Who notices what: gloo, at once, that the process of a peer has gone, and after {timeout:g} s that one is silent
(torch's default is 1800); an agent, that its worker has failed; a backend with sessions, that a node's connection has
ended, or that it has been silent for {ttl} s; c10d, ours and torch's, that {attempts} keep-alives are missing, of one
every {keep_alive} s. A new round of c10d waits for {last_call} s for more nodes once it has {least} (torch: 30).
{remarks}"""
LAST_CALL_S = 2


KEEP_ALIVES = 3
"""How many keep-alives in a row may be missing."""


def signs_of_life(ttl: float) -> dict[str, str]:
    """Options of a backend whose nodes write keep-alives; ``ttl``: seconds after which sessions end elsewhere."""
    return {"keep_alive_interval": str(keep_alive_s(ttl)), "keep_alive_max_attempt": str(KEEP_ALIVES)}


def keep_alive_s(ttl: float) -> int:
    """Whole seconds between two keep-alives: torch accepts no others."""
    return max(1, round(ttl / KEEP_ALIVES))


def c10d_conf(ttl: int) -> dict[str, str]:
    """Options of c10d, ours and torch's, that make it notice a silent node as late as the others do."""
    return {**signs_of_life(ttl), "last_call_timeout": str(LAST_CALL_S)}


def wanted_conf(ttl: int) -> dict[str, str]:
    """Options for whichever backend has them."""
    return {"ttl": str(ttl), **c10d_conf(ttl)}


def run(settings: FaultsSettings, args: Namespace) -> int:
    """Measure every fault and print the figures; returns the exit code. Raises ``UsageError`` and ``RdzvError``."""
    found = candidates(args, wanted_conf(settings.ttl))
    output = job_output("faults", settings, args, found)
    return measure(settings, found, output, asked_for=args.backends is not None)


def measure(settings: FaultsSettings, found: list[Candidate], output: Output, *, asked_for: bool) -> int:
    """The rest of ``run``, once it is known who is measured; ``asked_for``: the backends were named by the user."""
    with job_ground(output, found, worker, asked_for=asked_for) as ground:
        how = JobsAlike(
            nodes=settings.nodes,
            worker=ground.worker,
            guard=ground.guard,
            before=ground.before,
            limit_s=settings.limit_s,
            start_limit_s=max(2 * settings.limit_s, 120.0),
            collective_timeout_s=settings.collective_timeout_s,
        )
        launchers = ground.launchers(settings.references, c10d_conf(settings.ttl))
        if settings.preload:
            able = [each for each in ground.mine if each.name not in ground.left_out]
            launchers = [*(preloading(each, settings.preload) for each in able), *launchers]
        for fault, hit in cases(settings.faults, launchers).items():
            _case(fault, how, hit, settings.repeats, ground)
        output.end(
            _CAPTION.format(
                nodes=settings.nodes,
                least=settings.nodes - 1,
                ttl=settings.ttl,
                keep_alive=keep_alive_s(settings.ttl),
                attempts=KEEP_ALIVES,
                last_call=LAST_CALL_S,
                timeout=settings.collective_timeout_s,
                remarks=ground.remarks.rstrip(),
            )
        )
    return 0


def _case(fault: Fault, how: JobsAlike, launchers: Sequence[Launcher], repeats: int, ground: JobGround) -> None:
    case = JobCase("faults", fault.case, ground, launchers)
    # without a warm-up: each run has its own before the fault, the job's start
    turns = case.turns(lambda launcher: inflict(how, fault, launcher), repeats=repeats, warm_up=False)
    points: list[Point] = []
    for figure, about in _FIGURES.items():
        points += case.points(turns, figure, about, attrgetter(figure), leads=figure == "recover")
    runs = {name: list(map(_run, samples)) for name, samples in turns.samples.items()}
    details = {"left_out": ground.left_out, "way": fault.way(how.nodes), "runs": runs}
    case.write(points, details, notes=_starts(turns))


def _starts(turns: Turns[FaultSample]) -> list[str]:
    """Which launchers needed more than one attempt."""
    counts = {name: [sample.starts for sample in samples] for name, samples in turns.samples.items()}
    return [
        f"{name}: its workers were started {', '.join(map(str, each))} times until a collective went well"
        for name, each in counts.items()
        if any(count > 1 for count in each)
    ]


def _run(sample: FaultSample) -> dict[str, Any]:
    return {
        "rank": sample.victim_rank,
        "served": sample.served,
        "nodes_after": sample.nodes_after,
        "starts": sample.starts,
    }
