"""``rdzv bench faults``: how long a job needs to go on after something was killed or frozen, beside torchrun."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any

from rdzv_launcher.bench.backends import candidates
from rdzv_launcher.bench.children import Guard, end_all, environment, marked
from rdzv_launcher.bench.faults_worker import PREFIX
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
from rdzv_launcher.bench.points import Point, Turns
from rdzv_launcher.bench.readings import cpu_seconds
from rdzv_plugins.kvstore.sockets.listening import port_holder
from rdzv_plugins.testing.processes import default_signals

_LOOK_EVERY_S = 0.02
_END_S = 30.0
_SAID = re.compile(rf"^{PREFIX}(\{{.*\}})$", re.MULTILINE)
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


def keep_alive_s(ttl: float) -> int:
    """Whole seconds between two keep-alives: torch accepts no others."""
    return max(1, round(ttl / KEEP_ALIVES))


def c10d_conf(ttl: int) -> dict[str, str]:
    """Options of c10d, ours and torch's, that make it notice a silent node as late as the others do."""
    return {
        "keep_alive_interval": str(keep_alive_s(ttl)),
        "keep_alive_max_attempt": str(KEEP_ALIVES),
        "last_call_timeout": str(LAST_CALL_S),
    }


def run(args: Namespace) -> int:
    """Measure every fault and print the figures; returns the exit code. Raises ``UsageError`` and ``RdzvError``."""
    found = candidates(args, {"ttl": str(args.ttl), **c10d_conf(args.ttl)})
    with job_ground(args, found, "faults_worker.py") as ground:
        how = JobsAlike(
            nodes=args.nodes,
            worker=ground.worker,
            guard=ground.guard,
            limit_s=args.limit,
            start_limit_s=max(2 * args.limit, 120.0),
            collective_timeout_s=args.collective_timeout,
        )
        launchers = [*ground.mine, *references(args.references, c10d_conf(args.ttl))]
        if args.preload:
            able = [each for each in ground.mine if each.name not in ground.left_out]
            launchers = [*(preloading(each, args.preload) for each in able), *launchers]
        for fault, hit in cases(args.faults, launchers).items():
            _case(fault, how, hit, args.repeats, ground)
        ground.output.end(
            _CAPTION.format(
                nodes=args.nodes,
                least=args.nodes - 1,
                ttl=args.ttl,
                keep_alive=keep_alive_s(args.ttl),
                attempts=KEEP_ALIVES,
                last_call=LAST_CALL_S,
                timeout=args.collective_timeout,
                remarks=ground.remarks,
            )
        )
    return 0


def _case(fault: Fault, how: JobsAlike, launchers: Sequence[Launcher], repeats: int, ground: JobGround) -> None:
    case = JobCase(fault.case, ground, launchers)
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


# a real job of agents, to which something happens, and what its workers say about it


@dataclass
class Round:
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


@dataclass(frozen=True)
class _Agent:
    """An agent and the file with what it and its workers print."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")


@dataclass(frozen=True)
class JobsAlike:
    """How jobs are run, the same for all targets."""

    nodes: int
    worker: Path
    guard: Guard
    limit_s: float
    """How long a job may take from the fault to the next collective."""
    start_limit_s: float
    collective_timeout_s: float


class FaultyJob:
    """A context manager: none of its processes outlives it. For one thread."""

    def __init__(self, how: JobsAlike, target: Launcher, least: int, endpoints: int = 1) -> None:
        """``least``: with how many nodes it may go on. The first of several ``endpoints`` serves at the beginning."""
        self.how, self.target = how, target
        self._mark, self._directory = how.guard.new_job()
        meeting = self._directory / "meeting"
        meeting.mkdir()
        self._meeting = meet(target, meeting, endpoints)
        self._nnodes = str(how.nodes) if least == how.nodes else f"{least}:{how.nodes}"
        self.agents: list[_Agent] = []
        """The agents by node; one that was started in place of another comes at the end."""

    def __enter__(self) -> FaultyJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_all(self._mark)
        for agent in self.agents:
            agent.process.wait(_END_S)

    def start(self) -> Round:
        """Start all nodes, and wait for their first collective. If a node serves, it should be the first.

        Raises ``JobFailed``.
        """
        begun, limit_s = time.monotonic(), self.how.start_limit_s
        self.start_agent(0)
        if (port := self._port()) is not None:
            self._wait(lambda: _answers(port), {0}, begun, limit_s, "nobody serves the endpoint")
        for node in range(1, self.how.nodes):
            self.start_agent(node)
        found: Round = self._wait(
            lambda: self._round_of(set(range(self.how.nodes)), 0.0),
            set(range(self.how.nodes)),
            begun,
            limit_s,
            "the job did not start",
        )
        return found

    def start_agent(self, node: int) -> int:
        """Start the command that ``node`` had at the beginning; returns its place in ``agents``."""
        place = len(self.agents)
        output = self._directory / f"agent{place}.log"
        variables = environment(self._mark_of(place)) | {"GLOO_SOCKET_IFNAME": "lo"} | {**self.target.environment}
        script = [self.how.worker, self.how.collective_timeout_s]
        command = self._meeting.command(node, self._nnodes, 1, script, "--max-restarts=100")
        with output.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=variables,
                cwd=self._directory,
                preexec_fn=default_signals,
            )
        self.agents.append(_Agent(process, output))
        return place

    def wait_collective(self, nodes: Iterable[int], fault_at: float) -> Round:
        """The first collective of exactly these nodes, begun after the fault. Raises ``JobFailed``."""
        wanted, limit_s = set(nodes), self.how.limit_s
        found: Round = self._wait(lambda: self._round_of(wanted, fault_at), wanted, fault_at, limit_s, "did not go on")
        return found

    def serving(self) -> int | None:
        """The node that serves the endpoint; None if none of them does."""
        if (port := self._port()) is None:
            return None
        found = re.match(r"pid (\d+) ", port_holder(port))
        pids = [agent.process.pid for agent in self.agents]
        return pids.index(int(found[1])) if found and int(found[1]) in pids else None

    def worker(self, node: int) -> int:
        """The process id of a node's newest worker."""
        return int(self._said(node)[-1]["pid"])

    def signal_node(self, node: int, number: signal.Signals) -> None:
        """Send a signal to an agent and then to all that it has started, as when a machine fails."""
        agent = self.agents[node].process.pid
        for pid in [agent, *(each for each in marked(self._mark_of(node)) if each != agent)]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def cpu(self, nodes: Iterable[int]) -> float:
        """Seconds used so far by the agents of these nodes, and by the service that they dial."""
        return sum(cpu_seconds(self.agents[node].process.pid) for node in nodes) + self.target.service_cpu()

    def _mark_of(self, node: int) -> str:
        return f"{self._mark}-{node}"

    def _port(self) -> int | None:
        found = re.match(r"127\.0\.0\.1:(\d+)(,|$)", self._meeting.endpoint)
        return int(found[1]) if found else None

    def _wait(self, condition: Callable[[], Any], nodes: set[int], begun: float, limit_s: float, what: str) -> Any:
        """Wait until the condition is true, which it cannot become without all of ``nodes``. Raises ``JobFailed``."""
        while not (value := condition()):
            for node in sorted(nodes):
                code = self.agents[node].process.poll() if node < len(self.agents) else None
                if code is not None:
                    words = last_words(self.agents[node].text)
                    raise JobFailed(f"{what}: exit code {code} of node {node}", words)
            if time.monotonic() > begun + limit_s:
                raise JobFailed(f"{what} within {limit_s:g} s", last_words(self.agents[min(nodes)].text))
            time.sleep(_LOOK_EVERY_S)
        return value

    def _round_of(self, nodes: set[int], after: float) -> Round | None:
        """The round with exactly these members, once all of them have had their first collective."""
        rounds: dict[int, Round] = {}
        started: dict[int, float] = {}
        starts = 0
        for node in range(len(self.agents)):
            own = 0
            for said in self._said(node):
                if "round" not in said:
                    started[said["pid"]] = said["at"]
                    own += said["at"] > after
                    starts = max(starts, own)
                elif said["at"] > after:
                    each = rounds.setdefault(said["round"], Round(said["world"]))
                    each.ranks[node] = said["rank"]
                    each.at = max(each.at, said["at"])
                    each.started = max(each.started, started[said["pid"]])
        for each in rounds.values():
            if each.ranks.keys() == nodes and each.world == len(nodes):
                each.starts = starts
                return each
        return None

    def _said(self, node: int) -> list[dict[str, Any]]:
        return [json.loads(found) for found in _SAID.findall(self.agents[node].text)]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
