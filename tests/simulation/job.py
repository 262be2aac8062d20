"""A job of whole agents: what they share, what happens to them, and what always has to hold.

``Job`` has the real elastic engine; the workers of a round depend on each other, as those of training do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from rdzv_launcher.run.agent.events import BarrierOver, DoneWithout, SignalArrived
from rdzv_launcher.run.agent.state_machine import Limits
from rdzv_launcher.run.agent.steps import Join, Leave, NoteLeaving
from rdzv_plugins.errors import JobHung
from rdzv_plugins.interfaces import Failure
from rdzv_plugins.runtime import Signals
from simulation.agent import Agent, Options, Plan
from simulation.machines import LIMIT_S, Machines
from simulation.whole import Engine, Round
from simulation.workers import Does, Worker

CODES = frozenset({0, 1, 66, 68, 69, 71, 75, 76, 78, 80, 81, 82, *(128 + number for number in (1, 2, 3, 9, 15))})
"""How an agent may end, besides the exit codes that its workers have."""
_WITH_S = 0.3
"""How soon a worker fails when one of its round has ended."""
_KILL_S = Limits(workers=1).kill_timeout
_TOLD_S = 1.0
_HEARS_S, _ENDS_S = 15.0, 35.0
"""How soon an agent has heard of the end of a round, and has ended after the job, even if its supervisor stands still:
beyond --monitor-interval and --shutdown-timeout.
"""
_LAST_S = 2.0
"""So much later nothing of an agent that was killed may live."""


class Job(Machines):
    """A job of some nodes. ``low`` and ``high`` are those of --nnodes; a node more is a spare."""

    def __init__(
        self,
        nodes: int = 2,
        plan: Plan = lambda group, local_rank: Does(),
        options: Options | None = None,
        *,
        low: int | None = None,
        high: int | None = None,
        seed: int = 1,
        ttl: float = 5.0,
        timeout: float = 600.0,
        together: bool = True,
        by_connection: bool = True,
        starts: bool = True,
        **options_of_rendezvous: Any,
    ) -> None:
        """``together``: workers of a round fail when one of them has. Nodes that are there at once have their ranks."""
        super().__init__(seed)
        settled = {"ttl": ttl, "timeout": timeout, "by_connection": by_connection} | options_of_rendezvous
        self.meeting: Any = self._meet(low or high or nodes, high or nodes, **settled)
        self.on_stage: Callable[[], object] = lambda: None
        """An agent has decided something."""
        self.plan, self.options, self._together = plan, options, together
        self.agents: list[Agent] = []
        self.violations: list[str] = []
        self.judged: Counter[str] = Counter()
        """How often each oracle had something to judge, by the invariant of the design that it is about."""
        self._running = 0
        self._round_of: dict[int, int] = {}
        """The round of each worker, by pid."""
        self._rounds: dict[tuple[str, int], int] = {}
        """The round of each generation of an agent."""
        self.failed: set[int] = set()
        """The rounds in which a worker has failed by itself."""
        self.guilty: set[int] = {-1}
        """The pids of those workers."""
        self.late: set[int] = set()
        """The rounds in which a supervisor was lost: what it has left is ended before that is reported."""
        self._told_by: dict[str, float] = {}
        """When a node whose session the service has ended before its time has heard of that, at the latest."""
        self.cut_off: dict[str, tuple[float, float]] = {}
        """From when until when nothing from other hosts has reached a host, at the last time."""
        self._reporters: list[tuple[int, Agent, float]] = []
        """Of each of those workers its round, its agent, and when it failed."""
        for rank in range(nodes if starts else 0):
            self.add(rank=rank if rank < self.meeting.high else None)

    def _meet(self, low: int, high: int, **options: Any) -> Engine:
        return Engine(self, low, high, **options)

    def add(self, options: Options | None = None, host: str = "", *, rank: int | None = None) -> Agent:
        """Another node, on a host of its own if none is given."""
        name = f"n{len(self.agents)}"
        made = Agent(
            self,
            name,
            lambda _: self.meeting.handler(made, rank),
            self.plan,
            options or self.options,
            host or f"10.0.0.{len(self.agents) + 1}",
        )
        made.entry.ended = lambda: self._over(made)
        self._running += 1
        made.on_stage = lambda: self.on_stage()
        made.on_start = lambda generation: self._starts(made, generation)
        made.machine.on_start = lambda worker, name: self._started(made, worker)
        self.agents.append(made)
        return made

    def __getitem__(self, number: int) -> Agent:
        return self.agents[number]

    # What happens

    def run(self, limit: float = LIMIT_S) -> Job:
        """Until all agents are over, and nothing of theirs lives. Raises ``Stuck``, and ``AssertionError``."""
        while self._running:
            self.until(lambda: not self._running, limit)
            self.after(_LAST_S)
        self.judged["I13"] += len(self.agents)  # each has ended: Stuck would say otherwise
        self.check()
        self.scheduler.close()
        return self

    def works(self, *agents: Agent) -> bool:
        """Whether the workers of these agents run, or of all."""
        return all(each.works for each in agents or self.agents)

    def kill(self, agent: Agent) -> None:
        """SIGKILL of an agent: its kernel says so to whoever is connected."""
        agent.kill()

    def freeze(self, agent: Agent, seconds: float) -> None:
        """An agent stands still, and nothing else of its node."""
        agent.freeze()
        self.scheduler.at(self.now + seconds, agent.thaw)

    def replace(self, agent: Agent) -> Agent:
        """A node in the place of another."""
        return self.add()

    def lose_supervisor(self, agent: Agent, happens: Callable[[], object]) -> None:
        """Something happens to the supervisor of an agent that counts as a failure of its workers."""
        if agent.handler is not None and agent.handler.mine is not None:
            self.failed.add(agent.handler.mine.number)
            self.late.add(agent.handler.mine.number)
        self.guilty |= {each.entry.pid for each in agent.workers}
        happens()

    def kill_worker(self, agent: Agent, worker: Worker) -> None:
        """Somebody kills a worker: that is a failure of its own."""
        if not worker.told:
            self._blame(agent, worker, self._round_of[worker.entry.pid])
        self.processes.signal(worker.entry, Signals.SIGKILL)

    def end_session(self, agent: Agent) -> None:
        """The service ends its session: the others know of that before it does."""
        self._told_by[agent.name] = self.now + _TOLD_S
        self.meeting.lose(agent.handler)

    def hang(self, agent: Agent) -> None:
        """Its watch finds that the job hangs, because of the first worker of node 1."""
        self.failed.add(self._rounds[agent.name, agent.groups[-1].generation])
        agent.hang(Failure(1, "n1", 1, 0, 1, JobHung.exit_code, hang="waits"))

    @property
    def now(self) -> float:
        return self.scheduler.now

    # What is known

    @property
    def codes(self) -> list[int | None]:
        """The exit codes of the agents; None for one that was killed."""
        return [each.exit_code for each in self.agents]

    @property
    def restarts(self) -> list[int]:
        return [each.restarts_used for each in self.agents]

    # Workers of a round

    def _starts(self, agent: Agent, generation: int) -> None:
        round_ = self._rounds[agent.name, generation] = agent.handler.mine.number
        if agent.machine.supervisor.process.frozen:  # it starts nothing
            self.failed.add(round_)

    def _started(self, agent: Agent, worker: Worker) -> None:
        round_ = agent.handler.mine.number
        self._round_of[worker.entry.pid] = round_
        worker.entry.ended = lambda: self._ended(agent, worker, round_)
        older = [
            each.entry.pid
            for other in self.agents
            if other.entry.lives
            and other.works  # otherwise they are being ended, and their round does not hold
            and not (other.process.frozen and other.machine.supervisor.process.frozen)  # nobody who could end them
            and self.now >= self._told_by.get(other.name, 0.0)
            for each in other.workers
            if self._round_of.get(each.entry.pid, round_) < round_ and each.entry.state == "R"
        ]
        self.judge("I4", not older, f"workers {older} of an earlier round run beside those of round {round_}")

    def _ended(self, agent: Agent, worker: Worker, round_: int) -> None:
        if worker.has_failed:
            self._blame(agent, worker, round_)
        if not self._together or worker.entry.status == 0:
            return
        others = [
            each
            for agent in self.agents
            for each in agent.workers
            if self._round_of.get(each.entry.pid) == round_ and each is not worker
        ]
        for each in others:
            self.scheduler.at(
                self.now + _WITH_S * (1 + self.scheduler.random.random()), lambda each=each: each.fail_with()
            )

    def _blame(self, agent: Agent, worker: Worker, round_: int) -> None:
        self.failed.add(round_)
        self.guilty.add(worker.entry.pid)
        self._reporters.append((round_, agent, self.now))

    def _was_late(self, round_: int | None) -> bool:
        """Whether those that fail with a worker may be reported before it: whoever reports it stood still."""
        if any(_is_hurried(each) for each in self.agents if each.handler is not None and each.handler.mine is not None):
            return True
        return round_ in self.late or any(
            of == round_ and (agent.entry.continued_at >= when or agent.machine.supervisor.entry.continued_at >= when)
            for of, agent, when in self._reporters
        )

    # What always has to hold

    def judge(self, invariant: str, holds: object, wrong: str) -> None:
        """Count, and note what is wrong unless it holds."""
        self.judged[invariant] += 1
        if not holds:
            self.violations.append(f"{invariant} at {self.now - 1000:.3f} s: {wrong}")

    def round_over(self, round_: Round) -> None:
        """Its members hear of it soon, and have ended their workers by the time that their options give."""
        for agent in self.agents:
            if agent.entry.lives and agent.handler is not None and agent.handler.mine is round_:
                options = agent.options
                hears = self.now + options.monitor_interval + _HEARS_S
                self._expect(agent, round_, hears, lambda agent: not agent.works)
                stops = hears + options.shutdown_timeout + _KILL_S
                self._expect(agent, round_, stops, lambda agent: not agent.works and agent.stage != "stopping")

    def _expect(self, agent: Agent, round_: Round, by: float, of: Callable[[Agent], bool]) -> None:
        began = self.now

        def look() -> None:
            _, back = self.cut_off.get(agent.process.host, (0.0, 0.0))
            stood = agent.process.frozen or max(agent.entry.continued_at, back) >= began
            on = any(time >= began and isinstance(step, Join) for time, _, step in agent.story)  # to the next round
            if agent.entry.lives and agent.handler.mine is round_ and not stood and not on:
                waited = self.now - began
                self.judge("I13", of(agent), f"{agent.name} is {agent.stage} {waited:.0f} s after the end of its round")

        self.scheduler.at(by, look)

    def _over(self, agent: Agent) -> None:
        self._running -= 1
        began = max(self.meeting.ended_at, agent.entry.continued_at, self._supervised_at(agent))
        if self.meeting.ended is not None and self._is_part(agent):
            in_time = self.now - began <= agent.options.shutdown_timeout + _ENDS_S
            self.judge("I5", in_time, f"{agent.name} has ended {self.now - began:.1f} s after the job")
        self.scheduler.at(self.now + _LAST_S, lambda: self._look_behind(agent))

    def _is_part(self, agent: Agent) -> bool:
        """Whether it can hear of the end of the job: one that came, or went on, after it may find all others gone."""
        return max(self.meeting.came(agent), agent.entry.continued_at) <= self.meeting.ended_at

    def _supervised_at(self, agent: Agent) -> float:
        """Until when its supervisor stood still."""
        supervisor = agent.machine.supervisor
        return self.now if supervisor.process.frozen else supervisor.entry.continued_at

    def _look_behind(self, agent: Agent) -> None:
        """An agent has ended some time ago: nothing that its workers have started may live."""
        held = agent.has_stuck or any(
            each.process.frozen or each.entry.continued_at > self.now - _LAST_S for each in agent.machine.supervisors
        )
        if not agent.options.leave_background and not held:
            self.judge("I12", not agent.alive, f"{agent.name} has left {agent.alive} behind")

    def check(self) -> None:
        """The oracles. Raises ``AssertionError`` with all that is wrong."""
        for thread, error in self.scheduler.failed:
            self.judge("I13", False, f"{thread} has ended by {error!r}")
        for agent in self.agents:
            self._ends_as_documented(agent)
            self._ends_with_the_job(agent)
            self._used_restarts_for_failures(agent)
            self._blames_who_has_failed(agent)
        assert not self.violations, "\n".join(self.violations)

    def _ends_as_documented(self, agent: Agent) -> None:
        own = {each.does.code for each in agent.machine.workers}
        codes = CODES | {code if code >= 0 else 128 - code for other in self.agents for code in _codes(other)} | own
        killed = agent.exit_code is None and agent.entry.status == Signals.SIGKILL
        self.judge("codes", killed or agent.exit_code in codes, f"{agent.name} has ended with {agent.exit_code}")
        numbers = {each.number for each in agent.steps(SignalArrived)}
        arrived = {81 if number in agent.options.preempt_signals else 128 + number for number in numbers}
        if arrived - {81}:
            wrong = f"{agent.name} has ended with {agent.exit_code}: it got a signal of {arrived}"
            self.judge("codes", agent.exit_code in {*arrived, None}, wrong)

    def _ends_with_the_job(self, agent: Agent) -> None:
        if agent.exit_code == 0 and self._is_part(agent) and self.meeting.ended is not None:
            told = [time for time, _, step in agent.story if isinstance(step, Leave)]
            done = [time for time, _, event in agent.story if isinstance(event, BarrierOver | DoneWithout)]
            before = told[0] <= self.meeting.ended_at or done[0] < self.meeting.ended_at
            self.judge("I5", before, f"{agent.name} has ended with 0 after the job has failed")

    def _used_restarts_for_failures(self, agent: Agent) -> None:
        for generation in agent.counted:
            wrong = f"{agent.name} has used a restart for generation {generation}: no worker of it has failed by itself"
            self.judge("I10", self._rounds.get((agent.name, generation)) in self.failed, wrong)

    def _blames_who_has_failed(self, agent: Agent) -> None:
        blamed = failure_of(agent)
        if blamed is not None and not blamed.hang and not self._was_late(self._round_of.get(blamed.pid)):
            wrong = f"{agent.name} blames {blamed.host}, pid {blamed.pid}, whose worker has not failed by itself"
            self.judge("blame", blamed.pid in self.guilty, wrong)


def _codes(agent: Agent) -> set[int]:
    return {each.does.code for each in agent.machine.workers}


def _is_hurried(agent: Agent) -> bool:
    """Whether it got a second signal while it told the others of the first: then they do not know that it leaves."""
    told = [time for time, _, step in agent.story if isinstance(step, NoteLeaving)]
    signals = [time for time, _, event in agent.story if isinstance(event, SignalArrived)]
    return bool(told) and any(told[0] <= time < told[0] + _WITH_S for time in signals[1:])


def failure_of(agent: Agent) -> Failure | None:
    """The worker that is to blame, as an agent was told."""
    if agent.end is None:
        return None
    return getattr(agent.end.error, "failure", None) or agent.end.outcome.failure


def fails(node: int, *, code: int = 1, times: int = 1, after: float = 5.0, then: float = 10.0) -> Plan:
    """The first worker of a node fails in its first starts. All others run for long enough to hear of it."""

    def plan(group: Any, local_rank: int) -> Does:
        if group.generation > times:
            return Does(runs=then)
        if group.group_rank == node and local_rank == 0:
            return Does(runs=after, code=code)
        return Does(runs=after + then)

    return plan
