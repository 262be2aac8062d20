"""Whole agents on ``static``, in simulated time: ``Job``, with the real handler and the stores that it serves.

Each node has its rank. Whoever is lost without a word is missed when somebody asks: workers that fail with it use up a
restart, and without one the job ends by ``NodeLost``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from rdzv_launcher.run.agent.events import Hung, SignalArrived, StartFailed, Stuck
from rdzv_launcher.run.agent.steps import AskPeers, CountRestart, FindCause, Join, Leave
from rdzv_plugins.backends.static import StaticOptions, run_prefix
from rdzv_plugins.backends.static.handler import StaticHandler
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointLost, NodeLost
from rdzv_plugins.interfaces import Outcome, Request, RoundEvent, RoundInfo
from rdzv_plugins.kvstore.native.framing import CONTROL
from rdzv_plugins.rounds.ends import parse_outcome
from rdzv_plugins.runtime import Signals
from simulation.agent import Agent, Options, Plan
from simulation.job import Job
from simulation.stores import StoreServers
from simulation.whole import Round
from simulation.workers import Does

HOST, PORT = "10.0.0.1", 5
ANSWER_S = 10.0
"""Whoever stands still, or is cut off, for so long may be taken for lost."""
KEEP_ALIVE_S = 40.0
"""So long it takes until a host that is gone, or cut off, is noticed."""


_NEWS = (SignalArrived, Hung, StartFailed, Stuck)


_ASKS = (Join, AskPeers, CountRestart, FindCause, Leave)
_END = f"/{run_prefix('job')}/end".encode()
_GIVEN_UP_S = 60.0 + 2 * KEEP_ALIVE_S
"""Whatever an agent asks is given up after so long, besides the time that all nodes have to come."""
_LET_IN_S = 1.0
"""So long it takes a node that comes until it hears of the end."""


class Given(Struct):
    """What a node was started with."""

    rank: int
    nodes: int
    run_id: str
    timeout: float


class Entered(Struct, frozen=True):
    """A round, as it was complete for a node."""

    agent: str
    job: int
    """Which of the control stores it was in: a node rank 0 that is started again begins another job."""
    round: int
    rank: int
    world: int
    store: tuple[str, int]


class Static:
    """What ``Job`` asks of an ``Engine``."""

    def __init__(self, job: StaticJob, nodes: int, linger: float) -> None:
        self.low = self.high = nodes
        self.rounds: dict[int, Round] = {}
        self.entered: list[Entered] = []
        self.servers = StoreServers(job.kernel)
        self._job, self._linger = job, linger

    def handler(self, agent: Agent, _: object) -> Handler:
        given = self._job.given[agent.name]
        request = Request(
            "static",
            given.run_id,
            f"{HOST}:{PORT}",
            given.nodes,
            given.nodes,
            nproc_per_node=agent.options.workers,
            node_rank=given.rank,
            max_restarts=agent.options.max_restarts,
            options=StaticOptions(store="parallel", linger=self._linger, timeout=given.timeout),
            entrypoint=("train.py",),
            target=Endpoint(HOST, PORT),
        )
        return Handler(self, agent, request, given.rank)

    def enter(self, handler: Handler, number: int, info: RoundInfo) -> Round:
        """A round is complete for a node."""
        where = info.bootstrap_store_info
        assert where is not None
        address = where.master_addr, where.master_port
        job = sum(name == CONTROL for name, _ in self.servers.opened)
        self.entered.append(Entered(str(handler.process), job, number, info.rank, info.world_size, address))
        return self.rounds.setdefault(number, Round(number))

    def over(self, number: int, why: str) -> None:
        """Somebody has heard that a round is over."""
        round_ = self.rounds.setdefault(number, Round(number))
        if not round_.over:
            round_.over = why
            self._job.round_over(round_)

    @property
    def ended(self) -> Outcome | None:
        """How a node has ended the job; None while it has not failed."""
        return next((outcome for _, outcome in self._ends()), None)

    @property
    def ended_at(self) -> float:
        """When node rank 0 was told so: one that is cut off when it ends the job tells nobody before it is back."""
        return next((at for at, _ in self._ends()), 0.0)

    def _ends(self) -> Iterator[tuple[float, Outcome]]:
        for name, store in self.servers.opened:
            if name == CONTROL and _END in store.keys and (said := parse_outcome(store.keys[_END])).end == "failed":
                yield store.told_at[_END], said


class Handler(StaticHandler):
    """The real one, and what is known about it."""

    holding = questions = None

    def __init__(self, static: Static, agent: Agent, request: Request, rank: int) -> None:
        super().__init__(request, rank, agent.runtime, static.servers)
        self._static, self.process, self._agent = static, agent.process, agent
        self.mine: Round | None = None
        self._number = 0
        self.tell_events(self._hear)

    def next_rendezvous(self) -> RoundInfo:
        info = super().next_rendezvous()
        self.mine = self._static.enter(self, self._number, info)
        return info

    def _hear(self, event: RoundEvent) -> None:
        self._agent.note("is told", event)
        if event.kind == "complete":
            self._number = event.round
        elif event.kind == "over":
            self._static.over(event.round, event.reason)


class StaticJob(Job):
    """A job of nodes with the ranks 0 to ``nodes`` - 1. Node k is on the host ``10.0.0.<k + 1>``."""

    def __init__(
        self,
        nodes: int = 2,
        plan: Plan = lambda group, local_rank: Does(),
        options: Options | None = None,
        *,
        seed: int = 1,
        timeout: float = 100.0,
        linger: float = 5.0,
        starts: bool = True,
    ) -> None:
        self.timeout, self.nodes, self._linger = timeout, nodes, linger
        self.given: dict[str, Given] = {}
        self.hindered: dict[str, str] = {}
        """Agents to which something has happened that others may notice, and what."""
        self._supervised = True
        super().__init__(nodes, plan, options or Options(monitor_interval=1.0), seed=seed, starts=False)
        for rank in range(nodes if starts else 0):
            self.join(rank)

    def _meet(self, low: int, high: int, **_: Any) -> Any:
        return Static(self, high, self._linger)

    def join(
        self,
        rank: int,
        options: Options | None = None,
        *,
        host: str = "",
        nodes: int | None = None,
        run_id: str = "job",
        timeout: float | None = None,
    ) -> Agent:
        """A node with that rank, on its host. The others are what it is told about the job."""
        self.given[f"n{len(self.agents)}"] = Given(rank, nodes or self.nodes, run_id, timeout or self.timeout)
        return self.add(options, host or f"10.0.0.{rank + 1}")

    @property
    def static(self) -> Static:
        found: Static = self.meeting
        return found

    # What happens

    def kill(self, agent: Agent) -> None:
        self._lose(agent, "is killed")
        super().kill(agent)

    def crash(self, agent: Agent) -> None:
        """Its host is gone, with all that is there, and says nothing."""
        there = [each for each in self.agents if each.process.host == agent.process.host]
        for each in there:
            self._lose(each, "is lost with its host")
        self.network.crash(agent.process.host)
        for pid in [pid for each in there for pid in each.alive]:
            self.processes.end(self.processes.entries[pid], Signals.SIGKILL)

    def freeze(self, agent: Agent, seconds: float) -> None:
        if seconds >= ANSWER_S / 2:
            self.hinder(agent, "stands still")
        self._tells_late(agent)
        super().freeze(agent, seconds)

    def cut(self, agent: Agent, seconds: float, *, ways: str = "both") -> None:
        """Nothing gets from it to the other hosts (``to``), from them to it (``from``), or either."""
        if seconds >= ANSWER_S / 2:
            self._lose(agent, "is cut off")
        elif agent.handler is not None and agent.handler.mine is not None:  # others may report before it
            self.late.add(agent.handler.mine.number)
            self.failed.add(agent.handler.mine.number)  # or have to use a restart, if it leaves meanwhile
        here = agent.process.host
        self.cut_off[here] = self.now, self.now + seconds
        others = [host for host in dict.fromkeys(each.process.host for each in self.agents) if host != here]
        cut = [(here, each) for each in others if ways != "from"] + [(each, here) for each in others if ways != "to"]
        for source, target in cut:
            self.network.cut(source, target)
        self.scheduler.at(self.now + seconds, lambda: [self.network.heal(*each) for each in cut])

    def lose_supervisor(self, agent: Agent, happens: Callable[[], object]) -> None:
        self._supervised = False
        super().lose_supervisor(agent, happens)

    def replace(self, agent: Agent) -> Agent:
        """Another agent with its rank, on the same host unless that is gone."""
        rank = self.given[agent.name].rank
        gone = self.network.is_cut(agent.process.host, "")
        return self.join(rank, agent.options, host=f"10.0.1.{len(self.agents)}" if gone else agent.process.host)

    def reset(self, agent: Agent) -> None:
        """Something on the way resets its connections to other hosts."""
        self._lose(agent, "its connections are reset")
        for end in [each for each in self.network.ends if each.process is agent.process]:
            peer = end.peer
            if peer.process.host != agent.process.host:
                end.hear_of_the_end("reset")
                peer.hear_of_the_end("reset")

    def hinder(self, agent: Agent, what: str) -> None:
        self.hindered.setdefault(agent.name, what)
        self._tells_late(agent)

    def _tells_late(self, agent: Agent) -> None:
        """What others have told node rank 0 while it did nothing is taken in any order."""
        if self.given[agent.name].rank == 0 and agent.handler is not None and agent.handler.mine is not None:
            self.late.add(agent.handler.mine.number)

    def _lose(self, agent: Agent, what: str) -> None:
        """The workers of its round fail with it, and whoever reports that does not know why."""
        self.hinder(agent, what)
        if agent.handler is not None and agent.handler.mine is not None:
            self.failed.add(agent.handler.mine.number)
            self.late.add(agent.handler.mine.number)

    # What always has to hold

    def check(self) -> None:
        self._one_world_per_round()
        for agent in self.agents:
            self._blames_nobody_who_lives(agent)
            self._waits_for_nobody_for_ever(agent)
        if not self.hindered and not self.late and not self._mistaken and len(self.agents) == self.nodes:
            self._goes_on_or_ends_by_itself()
        super().check()

    @property
    def _mistaken(self) -> bool:
        """Somebody has started a node with a setting that does not fit."""
        ranks = sorted(each.rank for each in self.given.values())
        return ranks != list(range(self.nodes)) or len({(each.nodes, each.run_id) for each in self.given.values()}) > 1

    def _used_restarts_for_failures(self, agent: Agent) -> None:
        """What node rank 0 was told goes with it: one that stood still until then knows of nobody who has left."""
        if agent.entry.continued_at < self._served_until:
            super()._used_restarts_for_failures(agent)

    @property
    def _served_until(self) -> float:
        """When node rank 0 has ended, the first if there were several."""
        told = (line for each in self.agents if self.given[each.name].rank == 0 for line in each.story)
        return next((time for time, what, _ in told if what == "ends"), math.inf)

    def _is_part(self, agent: Agent) -> bool:
        """A second node rank 0 may serve on another host, where nobody looks for it; nobody serves who comes late."""
        came = agent.story[0][0] if agent.story else math.inf
        deaf = any(self.given[name].rank == 0 for name in self.hindered)  # nobody hears what it is told
        away = [self.cut_off[host] for host in (HOST, agent.process.host) if host in self.cut_off]
        if came > self._served_until or deaf or any(began - _LET_IN_S <= came < back for began, back in away):
            return False
        return agent.name not in self.hindered and (self.given[agent.name].rank != 0 or agent.process.host == HOST)

    def _one_world_per_round(self) -> None:
        for one in self.static.entered:
            given = self.given[one.agent]
            own = (one.rank, one.world) == (given.rank, self.nodes) and given.run_id == "job"
            self.judge("I8", own, f"{one.agent} is rank {one.rank} of {one.world}, and was given {given}")
            for other in self.static.entered:
                if (other.job, other.round) != (one.job, one.round) or other is one:
                    continue
                wrong = f"{one.agent} and {other.agent} are in two worlds, both round {one.round}"
                self.judge("I11", other.store == one.store, wrong)
                wrong = f"{one.agent} and {other.agent} are both rank {one.rank} in {one.round}"
                self.judge("I6", other.rank != one.rank, wrong)

    def _blames_nobody_who_lives(self, agent: Agent) -> None:
        error = None if agent.end is None else agent.end.error
        if isinstance(error, NodeLost):
            names = [self._named(int(pid)) for pid in re.findall(r"pid (\d+)\)", str(error))]
        elif isinstance(error, EndpointLost):
            names = [each.name for each in self.agents if self.given[each.name].rank == 0]
        else:
            return
        hindered = any(name in self.hindered or self._had_ended(name, agent) for name in (*names, agent.name))
        self.judge("blame", hindered, f"{agent.name} blames {names}, who live: {error}")

    def _waits_for_nobody_for_ever(self, agent: Agent) -> None:
        """Whatever it asks the others is answered, or given up, in the time that it says."""
        for (began, what, step), (ended, _, _) in itertools.pairwise(
            each for each in agent.story if each[1] != "is told"
        ):
            limit = _GIVEN_UP_S + (self.given[agent.name].timeout if isinstance(step, Join) else 0.0)
            stood = agent.process.frozen or agent.entry.continued_at >= began
            if what == "takes" and isinstance(step, _ASKS) and not stood:
                wrong = f"{agent.name} has waited for {ended - began:.0f} s: {step}"
                self.judge("I13", ended - began <= limit, wrong)

    def _named(self, pid: int) -> str:
        return next(each.name for each in self.agents if each.entry.pid == pid)

    def _had_ended(self, name: str, before: Agent) -> bool:
        """Whether an agent was on its way out when another ended."""
        agent = next(each for each in self.agents if each.name == name)
        ended = [time for time, what, _ in agent.story if what == "ends"]
        return bool(ended) and ended[0] <= next(time for time, what, _ in before.story if what == "ends")

    def _goes_on_or_ends_by_itself(self) -> None:
        """Nothing has happened to any node but failures of its workers."""
        own = {each.does.code for agent in self.agents for each in agent.machine.workers} - {0}
        own |= {-9} if len(self.guilty) > 1 else set()  # somebody has killed a worker
        expected = {0, *(code if code >= 0 else 128 - code for code in own)}
        stood = any(each.entry.continued_at for agent in self.agents for each in agent.machine.supervisors)
        if stood or not self._supervised or any(each.steps(_NEWS) for each in self.agents):  # type: ignore[arg-type]
            return
        for agent in self.agents:
            wrong = f"{agent.name} has ended with {agent.exit_code}, and nothing has happened"
            self.judge("I13", agent.exit_code in expected, wrong)
