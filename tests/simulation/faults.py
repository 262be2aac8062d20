"""Jobs of whole agents to which anything happens at any moment, from a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from random import Random
from typing import Any

from rdzv_plugins.runtime import Signals
from simulation.agent import Agent, Options
from simulation.job import Job
from simulation.random_jobs import Cut, RandomJob
from simulation.static_jobs import StaticJob
from simulation.troubles import RATES
from simulation.workers import Does

TTL_S = 5.0
_FAULTS = 5
_WITHIN_S = 20.0
_STOPPING = (Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP)
_NOTICE = Signals.SIGUSR1
_STATES = {
    "": "joining",
    "working": "working",
    "stopping": "stopping",
    **dict.fromkeys(("asking", "counting", "delaying", "finding"), "failed"),
    **dict.fromkeys(("barrier", "staying", "ended"), "ending"),
}
"""The state of an agent's round, by the stage of its decisions."""


def _state_of(agent: Agent) -> str:
    return _STATES.get(agent.stage, "joining")


class Faulty(RandomJob):
    """Agents on the elastic engine."""

    states = tuple(dict.fromkeys(_STATES.values()))
    rare = ("failed", "stopping")
    oracles: tuple[str, ...] = ("I4", "I5", "I10", "I12", "I13", "codes", "blame")
    kinds: tuple[Callable[..., None], ...]

    @classmethod
    def names(cls) -> list[str]:
        return [each.__name__.strip("_") for each in cls.kinds]

    def __init__(self, seed: int, cut: Cut) -> None:
        self._happened: list[tuple[float, str, str]] = []
        self.job = self._job(seed)
        super().__init__(seed, cut, self.job.scheduler, self.job.network)
        random = self.job.scheduler.random
        nodes = self._begin(random.choice([1, 2, 2, 2, 3]), random.randint(0, _FAULTS), _WITHIN_S)
        self._settle(nodes, random)
        self.job.plan, self.job.options = self._plan, self._options(random)
        self.job.on_stage = self._look
        self._nodes = self._come(nodes, random)

    def _job(self, seed: int) -> Job:
        return Job(seed=seed, ttl=TTL_S, starts=False, timeout=100.0, by_connection=bool(seed % 2))

    def _settle(self, nodes: int, random: Random) -> None:
        meeting = self.job.meeting
        meeting.high = random.choice([nodes, max(1, nodes - 1)])
        meeting.low = random.randint(1, meeting.high)

    def _come(self, nodes: int, random: Random) -> int:
        """Have the nodes come; returns how many there will be."""
        for _ in range(nodes):
            self.job.scheduler.at(self.job.now + random.random() * 3, self.job.add)
        return nodes

    def _options(self, random: Random) -> Options:
        return Options(
            workers=random.choice([1, 1, 2, 3]),
            max_restarts=random.choice([0, 1, 3]),
            shutdown_timeout=random.choice([2.0, 4.0, 10.0]),
            monitor_interval=random.choice([0.3, 1.0, 1.0]),
            restart_delay=random.choice([0.0, 1.0]),
            crash_loop=random.choice(["code", "any", "off"]),
            job_restarts=random.choice([None, None, 2]),
            preempt_grace=random.choice([0.0, 20.0]),
            preempt_signals=frozenset({_NOTICE}),
            leave_background=random.random() < 0.1,
            stuck_timeout=8.0,
            exit_barrier_timeout=random.choice([5.0, 300.0]),
            identical=random.random() < 0.3,
        )

    def run(self) -> Faulty:
        self.job.until(lambda: len(self.job.agents) >= self._nodes)
        try:
            self.job.run()
        finally:
            self.job.scheduler.close()
        return self

    @property
    def violations(self) -> list[str]:
        return self.job.violations

    @property
    def judged(self) -> Counter[str]:
        return self.job.judged

    @property
    def ends(self) -> list[str]:
        return ["killed" if code is None else str(code) for code in self.job.codes]

    @property
    def story(self) -> list[tuple[float, str, str]]:
        agents = self.job.agents
        lines = [*self._happened]
        lines += [(when, each.name, f"{what} {of}") for each in agents for when, what, of in each.story]
        lines += [
            (each.entered, each.entry.command, f"pid {each.entry.pid} started, {each.does}")
            for agent in agents
            for each in agent.machine.workers
        ]
        return [(when - 1000, who, what) for when, who, what in sorted(lines, key=lambda line: line[0])]

    def _plan(self, group: Any, local_rank: int) -> Does:
        random = self.job.scheduler.random
        fails, runs = random.random() < 0.12, random.choice([3.0, 8.0, 15.0])
        left = Does(runs=float("inf"), ends_in=random.choice([0.1, None]))
        return Does(
            runs=random.random() * 15 if fails else runs,
            code=random.choice([1, 3, -11]) if fails else 0,
            ends_in=random.choice([0.1, 0.1, 3.0, None]),
            background=left if random.random() < 0.1 else None,
            child=left if random.random() < 0.1 else None,
            fails_to_start=random.random() < 0.02,
        )

    def _states_now(self) -> Collection[str]:
        return [_state_of(each) for each in self._there()]

    def _there(self) -> list[Agent]:
        return [each for each in self.job.agents if each.entry.lives and each.entry.state == "R"]

    def _happens(self, rng: Random, aim: str) -> None:
        agents = self._there()
        if agents:
            agent = rng.choice([each for each in agents if _state_of(each) == aim] or agents)
            kind = rng.choice(self.kinds)
            name = kind.__name__.strip("_")
            self.met[name, _state_of(agent)] += 1
            self._happened.append((self.job.now, agent.name, f"FAULT: {name}"))
            kind(self, agent, rng)

    def _later(self, rng: Random, happens: Callable[[], object], most: float) -> None:
        self.job.scheduler.at(self.job.now + rng.random() * most, happens)

    # The faults

    def _agent_is_killed(self, agent: Agent, rng: Random) -> None:
        self.job.kill(agent)
        if rng.random() < 0.7:
            self._later(rng, lambda: self.job.replace(agent), 10.0)

    def _agent_stands_still(self, agent: Agent, rng: Random) -> None:
        self.job.freeze(agent, rng.choice([0.5, 0.7, 1.1, 4.0]) * TTL_S)

    def _host_stands_still(self, agent: Agent, rng: Random) -> None:
        entries = [agent.entry, *(each.entry for each in (*agent.machine.supervisors[-1:], *agent.workers))]
        due = self.job.now + rng.choice([0.5, 1.1, 4.0]) * TTL_S
        rng.shuffle(entries)
        for entry in entries:
            self.job.processes.signal(entry, Signals.SIGSTOP)
            self.job.scheduler.at(due, lambda entry=entry: self.job.processes.signal(entry, Signals.SIGCONT))

    def _signal(self, agent: Agent, rng: Random) -> None:
        agent.signal(rng.choice(_STOPPING))

    def _two_signals(self, agent: Agent, rng: Random) -> None:
        agent.signal(rng.choice(_STOPPING))
        self._later(rng, lambda: agent.signal(rng.choice(_STOPPING)), rng.choice([0.01, 5.0, 20.0]))

    def _notice(self, agent: Agent, rng: Random) -> None:
        agent.go_on = rng.choice([None, True, len(self.job.agents) > self.job.meeting.low])
        agent.saves_in = rng.choice([None, 1.0, 8.0])
        agent.signal(_NOTICE)

    def _worker_is_killed(self, agent: Agent, rng: Random) -> None:
        if agent.workers:
            worker = rng.choice(agent.workers)
            self.job.kill_worker(agent, worker)

    def _worker_is_held(self, agent: Agent, rng: Random) -> None:
        if agent.workers:
            worker = rng.choice(agent.workers)
            worker.entry.state = "D"
            self._later(rng, lambda: self.job.processes.release(worker.entry), 15.0)

    def _supervisor_is_killed(self, agent: Agent, rng: Random) -> None:
        if agent.machine.supervisors:
            entry = agent.machine.supervisor.entry
            self.job.lose_supervisor(agent, lambda: self.job.processes.signal(entry, Signals.SIGKILL))

    def _supervisor_is_stopped(self, agent: Agent, rng: Random) -> None:
        if agent.machine.supervisors:
            self.job.processes.signal(agent.machine.supervisor.entry, Signals.SIGSTOP)

    def _supervisor_stands_still(self, agent: Agent, rng: Random) -> None:
        if agent.machine.supervisors:
            process, entry = agent.machine.supervisor.process, agent.machine.supervisor.entry
            self.job.lose_supervisor(agent, lambda: self.job.scheduler.freeze(process))

            def thaw() -> None:
                if not process.killed:
                    entry.continued_at = self.job.now
                    self.job.scheduler.thaw(process)

            self.job.scheduler.at(self.job.now + rng.choice([2.0, 6.0, 40.0]), thaw)

    def _session_ends(self, agent: Agent, rng: Random) -> None:
        if agent.handler is not None:
            self.job.end_session(agent)

    def _job_hangs(self, agent: Agent, rng: Random) -> None:
        if agent.works:
            self.job.hang(agent)

    def _node_joins(self, agent: Agent, rng: Random) -> None:
        self.job.add()

    def _clock_drifts(self, agent: Agent, rng: Random) -> None:
        self.job.scheduler.drift(agent.process.host, rng.choice(RATES))

    def _disk_is_full(self, agent: Agent, rng: Random) -> None:
        agent.machine.disk_is_full = True

        def freed() -> None:
            agent.machine.disk_is_full = False

        self._later(rng, freed, 10.0)


Faulty.kinds = KINDS = (
    Faulty._agent_is_killed,
    Faulty._agent_stands_still,
    Faulty._host_stands_still,
    Faulty._signal,
    Faulty._two_signals,
    Faulty._notice,
    Faulty._worker_is_killed,
    Faulty._worker_is_held,
    Faulty._supervisor_is_killed,
    Faulty._supervisor_is_stopped,
    Faulty._supervisor_stands_still,
    Faulty._session_ends,
    Faulty._job_hangs,
    Faulty._node_joins,
    Faulty._clock_drifts,
    Faulty._disk_is_full,
)


class StaticFaulty(Faulty):
    """One job of ``static``: some nodes come late, or never."""

    oracles = (*Faulty.oracles, "I6", "I8", "I11")

    def _job(self, seed: int) -> StaticJob:
        self.static = StaticJob(seed=seed, starts=False)
        return self.static

    def _settle(self, nodes: int, random: Random) -> None:
        self.static.nodes = self.static.static.low = nodes

    def _come(self, nodes: int, random: Random) -> int:
        come = [rank for rank in range(nodes) if rank == 0 or random.random() < 0.95]
        for rank in come:
            after = random.random() * random.choice([3.0, 3.0, 3.0, 40.0])
            self.job.scheduler.at(self.job.now + after, lambda rank=rank: self.static.join(rank))
        return len(come)

    def _host_is_lost(self, agent: Agent, rng: Random) -> None:
        self.static.crash(agent)
        if rng.random() < 0.7:
            self._later(rng, lambda: self.job.replace(agent), 60.0)

    def _whole_host_stands_still(self, agent: Agent, rng: Random) -> None:
        self.static.hinder(agent, "stands still")
        self._host_stands_still(agent, rng)

    def _is_cut_off(self, agent: Agent, rng: Random) -> None:
        self.static.cut(agent, rng.choice([3.0, 20.0, 60.0]), ways=rng.choice(["both", "to", "from"]))

    def _connections_are_reset(self, agent: Agent, rng: Random) -> None:
        self.static.reset(agent)

    def _stands_still_for_long(self, agent: Agent, rng: Random) -> None:
        self.job.freeze(agent, rng.choice([15.0, 60.0]))

    def _another_with_its_rank(self, agent: Agent, rng: Random) -> None:
        self._another(agent, host=f"10.0.1.{len(self.job.agents)}")

    def _another_on_its_host(self, agent: Agent, rng: Random) -> None:
        self._another(agent, host=agent.process.host)

    def _other_settings(self, agent: Agent, rng: Random) -> None:
        wrong = rng.choice([{"nodes": self.static.nodes + 1}, {"run_id": "other"}])
        self._another(agent, host=f"10.0.1.{len(self.job.agents)}", **wrong)

    def _another(self, agent: Agent, **given: Any) -> None:
        if self.static.nodes > 1 and self.static.static.ended is None:  # otherwise it would be another job
            self.static.join(self.static.given[agent.name].rank, **given)


_OF_OTHERS = (Faulty._session_ends, Faulty._node_joins, Faulty._host_stands_still)
StaticFaulty.kinds = (
    *(each for each in KINDS if each not in _OF_OTHERS),
    StaticFaulty._whole_host_stands_still,
    StaticFaulty._host_is_lost,
    StaticFaulty._is_cut_off,
    StaticFaulty._connections_are_reset,
    StaticFaulty._stands_still_for_long,
    StaticFaulty._another_with_its_rank,
    StaticFaulty._another_on_its_host,
    StaticFaulty._other_settings,
)
