"""``rdzv bench faults``: how long a job needs to go on after something was killed or frozen, beside torchrun."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rdzv_launcher.bench import jobs
from rdzv_launcher.bench.backends import candidates
from rdzv_launcher.bench.children import Guard
from rdzv_launcher.bench.jobs import Job, JobBench, JobCase, JobSample, Launcher
from rdzv_plugins.interfaces import Capability
from rdzv_plugins.kvstore.sockets.listening import port_holder

_FIGURES = {
    "recover": ("time to the next collective", "s"),
    "restarted": ("time to the start of the new workers", "s"),
}
_CAPTION = """\
{nodes} agents on this machine, each with a worker in a loop of all_reduce over gloo, when the fault happens.
  time to the next collective           from the fault to the end of the first all_reduce of the next round on all nodes
  time to the start of the new workers  the launcher's part: importing torch and joining the gloo group, which follow,
                                        take the same time for all
A job with an elastic backend (--nnodes={least}:{nodes}) continues without the lost node. For the others the benchmark
starts the same command again at the moment of the fault and waits for the new agent; these are cases of their own,
without ratios between the two. The agent and its worker are killed or frozen, as if the machine failed. The store's
host is the node that serves the endpoint, or rank 0's where none does. With three endpoints, for backends that take
several, the job continues at another one. All agents have --max-restarts=100 and --local-addr=127.0.0.1.
What is detected: gloo notices at once that a peer's process is gone, and after {timeout:g} s that it is silent (torch's
default: 1800); an agent notices that its worker failed; a backend with sessions that a node's connection ended, or was
silent for {ttl} s; c10d, ours and torch's, that {keep_alive_max_attempt} keep-alives are missing, sent every
{keep_alive_interval} s. A new round of c10d waits {last_call_timeout} s for more nodes once it has {least} (torch: 30).
{remarks}"""
_LEAST_START_S = 120.0
_KEEP_ALIVES = 3
"""How many keep-alives in a row may be missing."""


def c10d_conf(ttl: int) -> dict[str, str]:
    """Options of c10d, ours and torch's, that make it notice a silent node as late as the others do."""
    return {
        "keep_alive_interval": str(max(1, round(ttl / _KEEP_ALIVES))),  # torch accepts whole seconds only
        "keep_alive_max_attempt": str(_KEEP_ALIVES),
        "last_call_timeout": "2",
    }


def run(args: Namespace) -> int:
    """Measure every fault and print the figures; returns the exit code. Raises ``UsageError`` and ``RdzvError``."""
    conf = c10d_conf(args.ttl)
    with jobs.job_bench(args, candidates(args, {"ttl": str(args.ttl), **conf})) as bench:
        launchers = [*bench.mine, *jobs.references(args.references, conf)]
        if args.preload:
            launchers = [*(jobs.preloading(each, args.preload) for each in bench.mine), *launchers]
        for fault, hit in cases(args.faults, launchers).items():
            _case(fault, args, hit, bench)
        about = {"nodes": args.nodes, "least": args.nodes - 1, "ttl": args.ttl, "remarks": bench.remarks}
        bench.output.end(_CAPTION.format(timeout=jobs.COLLECTIVE_TIMEOUT_S, **about, **conf))
    return 0


def _case(fault: Fault, args: Namespace, launchers: Sequence[Launcher], bench: JobBench) -> None:
    case = JobCase(fault.case, bench.output, launchers)

    def once(launcher: Launcher) -> JobSample:
        return inflict(bench.guard, fault, launcher, args.nodes, args.limit)

    # without a warm-up: each run has its own before the fault, the job's start
    runs = case.measure(once, _FIGURES, repeats=args.repeats)
    case.write({"way": fault.way(args.nodes), "runs": runs}, notes=_starts(runs))


def _starts(runs: Mapping[str, Sequence[JobSample]]) -> list[str]:
    """Which launchers needed more than one attempt."""
    counts = {name: [sample["starts"] for sample in samples] for name, samples in runs.items()}
    return [
        f"{name}: its workers were started {', '.join(map(str, each))} times until a collective went well"
        for name, each in counts.items()
        if any(count > 1 for count in each)
    ]


# what can happen, and to whom


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
        return FAULTS[self.instead] if self.instead and not target.has(Capability.ELASTIC) else self

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
            able = [target for target in targets if kind.endpoints == 1 or target.has(Capability.SEVERAL_ENDPOINTS)]
            hit = [target for target in able if fault.of(target) == kind or target in found.get(kind, ())]
            if hit:
                found[kind] = hit
    return found


def inflict(guard: Guard, fault: Fault, target: Launcher, nodes: int, limit_s: float) -> JobSample:
    """Run one job with one fault, which is ``of`` this target. Raises ``JobFailed`` if the job does not go on.

    ``limit_s``: how long that may take, from the fault to the next collective. Besides the figures, in seconds, a
    sample has the victim's ``rank``, whether it ``served`` the endpoint, ``nodes_after``, and how often workers were
    started until that succeeded (``starts``).
    """
    nnodes = f"{nodes - 1}:{nodes}" if fault.node_goes and not fault.again else f"{nodes}"
    with Job(guard, target, nnodes, 1, "endless", endpoints=fault.endpoints) as job:
        before = _start(job, nodes, max(2 * limit_s, _LEAST_START_S))
        serving = _serving(job)
        victim = _victim(fault, before, serving)
        remaining = {*range(nodes)} - ({victim} if fault.node_goes else set())
        worker = int(job.said(victim)[-1]["pid"])
        at = time.monotonic()
        if not fault.node_goes:
            os.kill(worker, fault.number)
        else:
            job.signal_node(victim, fault.number)
            if fault.again:
                remaining |= {job.start_agent(victim)}
        after: FaultRound = job.wait(lambda: _round_of(job, remaining, at), remaining, at, limit_s, "did not go on")
        return {
            "recover": after.at - at,
            "restarted": after.started - at,
            "rank": before.ranks[victim],
            "served": serving == victim,
            "nodes_after": after.world,
            "starts": after.starts,
        }


def _start(job: Job, nodes: int, limit_s: float) -> FaultRound:
    """Start all nodes, and wait for their first collective. If a node serves, it should be the first."""
    begun = time.monotonic()
    job.start_agent(0)
    if (port := _port(job)) is not None:
        job.wait(lambda: _answers(port), {0}, begun, limit_s, "nobody serves the endpoint")
    for node in range(1, nodes):
        job.start_agent(node)
    everyone = {*range(nodes)}
    found: FaultRound = job.wait(
        lambda: _round_of(job, everyone, 0.0), everyone, begun, limit_s, "the job did not start"
    )
    return found


def _port(job: Job) -> int | None:
    found = re.match(r"127\.0\.0\.1:(\d+)(,|$)", job.endpoint)
    return int(found[1]) if found else None


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _serving(job: Job) -> int | None:
    """The node that serves the endpoint; None if none of them does."""
    if (port := _port(job)) is None:
        return None
    found = re.match(r"pid (\d+) ", port_holder(port))
    pids = [agent.pid for agent in job.agents]
    return pids.index(int(found[1])) if found and int(found[1]) in pids else None


def _victim(fault: Fault, before: FaultRound, serving: int | None) -> int:
    """The highest rank that fits, of at least three nodes."""
    rank_0 = next(node for node, rank in before.ranks.items() if rank == 0)
    if fault.host:
        return rank_0 if serving is None else serving
    return max(before.ranks.keys() - {rank_0, serving}, key=lambda node: before.ranks[node])


@dataclass
class FaultRound:
    """The first collective of a group of workers, as far as they have got."""

    world: int
    ranks: dict[int, int] = field(default_factory=dict)
    """The rank of each node."""
    at: float = 0.0
    """When the last of them had its result, according to ``time.monotonic``."""
    started: float = 0.0
    """When the last of these workers was started."""
    starts: int = 0
    """The most times that the workers of one node were started since: 1 unless rounds have failed in between."""


def _round_of(job: Job, nodes: set[int], after: float) -> FaultRound | None:
    """The round with exactly these members, begun after that, once all of them have had their first collective."""
    rounds: dict[int, FaultRound] = {}
    started: dict[int, float] = {}
    starts = 0
    for node in range(len(job.agents)):
        own = 0
        for said in job.said(node):
            if "round" not in said:
                started[said["pid"]] = said["at"]
                own += said["at"] > after
                starts = max(starts, own)
            elif said["at"] > after:
                each = rounds.setdefault(said["round"], FaultRound(said["world"]))
                each.ranks[node] = said["rank"]
                each.at = max(each.at, said["at"])
                each.started = max(each.started, started[said["pid"]])
    for each in rounds.values():
        if each.ranks.keys() == nodes and each.world == len(nodes):
            each.starts = starts
            return each
    return None
