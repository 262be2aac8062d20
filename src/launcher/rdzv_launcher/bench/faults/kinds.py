"""What can happen to a job: the faults of ``rdzv bench faults``, and what they hit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rdzv_launcher.bench.faults.job import FaultyJob, JobsAlike, Round
from rdzv_launcher.bench.jobs.launchers import Launcher


@dataclass(frozen=True)
class Fault:
    """One thing that can happen to a job."""

    name: str
    """The word after ``--faults``."""
    case: str
    node_goes: bool = True
    """A node no longer takes part; otherwise only a worker is lost."""
    host: bool = False
    """It hits the node that serves the endpoint, or, if none does, rank 0; otherwise a node that is neither."""
    number: signal.Signals = signal.SIGKILL
    again: bool = False
    """The benchmark starts an agent in place of the lost one at once; otherwise the others go on without it."""
    endpoints: int = 1
    """At how many endpoints the nodes may meet: more than one only for targets that take several."""
    instead: str = ""
    """The name of the same fault with an agent in the lost one's place, for jobs that cannot go on with fewer nodes."""

    def of(self, target: Launcher) -> Fault:
        """What happens to this target: this fault, or the same with an agent in place of the lost one."""
        return FAULTS[self.instead] if self.instead and not target.elastic else self

    def way(self, nodes: int) -> str:
        """How a job of this many nodes goes on."""
        if not self.node_goes:
            return f"all {nodes} nodes go on"
        if self.again:
            return "another agent takes the place of the lost one"
        return f"{nodes - 1} nodes go on without the lost one"


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("worker", "a worker is killed", node_goes=False),
        Fault("agent", "an agent is killed", instead="agent-again"),
        Fault("agent-again", "an agent is killed and started again", again=True),
        Fault("frozen", "an agent is frozen", number=signal.SIGSTOP, instead="frozen-again"),
        Fault("frozen-again", "an agent is frozen and another started", number=signal.SIGSTOP, again=True),
        Fault("host", "the store's host is killed", host=True, instead="host-again"),
        Fault("host-again", "the store's host is killed and started again", host=True, again=True),
        Fault("place", "the serving process of three endpoints is killed", host=True, endpoints=3),
        Fault(
            "place-frozen",
            "the serving process of three endpoints is frozen",
            host=True,
            number=signal.SIGSTOP,
            endpoints=3,
        ),
    )
}


def cases(faults: Iterable[str], targets: Sequence[Launcher]) -> dict[Fault, list[Launcher]]:
    """For each named fault, the targets it happens to: within a case all go on in the same way, to be comparable."""
    found: dict[Fault, list[Launcher]] = {}
    for fault in (FAULTS[name] for name in faults):
        for kind in (fault, FAULTS[fault.instead or fault.name]):
            able = [target for target in targets if target.several or kind.endpoints == 1]
            hit = [target for target in able if fault.of(target) == kind or target in found.get(kind, ())]
            if hit:
                found[kind] = hit
    return found


@dataclass(frozen=True)
class FaultSample:
    """One fault and what came after it. Times are in seconds."""

    recover: float
    restarted: float
    cpu: float
    victim_rank: int
    served: bool
    """Whether the victim served the endpoint."""
    nodes_after: int
    starts: int
    """How often workers were started until that succeeded."""


def inflict(how: JobsAlike, fault: Fault, target: Launcher) -> FaultSample:
    """Run one job with one fault, which is ``of`` this target. Raises ``JobFailed`` if the job does not go on."""
    goes_on = fault.node_goes and not fault.again
    least = how.nodes - 1 if goes_on else how.nodes
    with FaultyJob(how, target, least, fault.endpoints) as job:
        before = job.start()
        serving = job.serving()
        victim = _victim(fault, before, serving)
        remaining = {*range(how.nodes)} - ({victim} if fault.node_goes else set())
        cpu = job.cpu(remaining)
        worker = job.worker(victim)
        at = time.monotonic()
        if not fault.node_goes:
            os.kill(worker, fault.number)
        else:
            job.signal_node(victim, fault.number)
            if fault.again:
                remaining |= {job.start_agent(victim)}
        after = job.wait_collective(remaining, at)
        return FaultSample(
            recover=after.at - at,
            restarted=after.started - at,
            cpu=job.cpu(remaining) - cpu,
            victim_rank=before.ranks[victim],
            served=serving == victim,
            nodes_after=after.world,
            starts=after.starts,
        )


def _victim(fault: Fault, before: Round, serving: int | None) -> int:
    """The highest rank that fits, of at least three nodes."""
    rank_0 = next(node for node, rank in before.ranks.items() if rank == 0)
    if fault.host:
        return rank_0 if serving is None else serving
    return max(before.ranks.keys() - {rank_0, serving}, key=lambda node: before.ranks[node])
