"""Jobs of whole agents to which anything happens at any moment, from a seed.

``python -m simulation.faults --seeds 1000`` runs many, and ``--seed N --show`` one, as a story.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from rdzv_plugins.runtime import Signals
from simulation.agent import Agent, Options
from simulation.job import Job
from simulation.scheduler import Stuck
from simulation.workers import Does

TTL_S = 5.0
_FAULTS = 5
_STOPPING = (Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP)
_NOTICE = Signals.SIGUSR1


class Faulty:
    """One job, and what happens to it. ``met`` counts each kind of fault by the stage of the agent that it met."""

    def __init__(self, seed: int, faults: int | None = None) -> None:
        self.seed = seed
        self.met: Counter[tuple[str, str]] = Counter()
        self.happened: list[tuple[float, str, str]] = []
        self.kinds = KINDS
        self.job = Job(seed=seed, ttl=TTL_S, starts=False, low=1, high=1, timeout=100.0)
        self._random = random = self.job.scheduler.random
        nodes = random.choice([1, 2, 2, 3, 4])
        self.job.meeting.high = random.choice([nodes, max(1, nodes - 1)])
        self.job.meeting.low = random.randint(1, self.job.meeting.high)
        options = self._options()
        self.job.meeting.interrupts = random.random() < 0.5
        self.job.meeting.latency = random.choice([0.0, 0.003, 0.1])
        self.job.plan, self.job.options = self._plan, options
        for _ in range(nodes):
            self.job.scheduler.at(self.job.now + random.random() * 3, self.job.add)
        for _ in range(random.randint(0, _FAULTS) if faults is None else faults):
            self.job.scheduler.at(self.job.now + random.random() * 25, self._something)
        self._nodes = nodes

    def _options(self) -> Options:
        random = self._random
        return Options(
            workers=random.choice([1, 1, 2, 3]),
            max_restarts=random.choice([0, 1, 3]),
            shutdown_timeout=random.choice([2.0, 10.0, 30.0]),
            monitor_interval=random.choice([0.1, 1.0, 1.0]),
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
        """To the end, whatever that is. Raises ``AssertionError``, and ``Stuck``."""
        self.job.until(lambda: len(self.job.agents) >= self._nodes)
        try:
            self.job.run()
        finally:
            self.job.scheduler.close()
        return self

    def _plan(self, group: Any, local_rank: int) -> Does:
        random = self._random
        fails, runs = random.random() < 0.12, random.choice([3.0, 10.0, 20.0])
        left = Does(runs=float("inf"), ends_in=random.choice([0.1, None]))
        return Does(
            runs=random.random() * 15 if fails else runs,
            code=random.choice([1, 3, -11]) if fails else 0,
            ends_in=random.choice([0.1, 0.1, 3.0, None]),
            background=left if random.random() < 0.1 else None,
            child=left if random.random() < 0.1 else None,
            fails_to_start=random.random() < 0.02,
        )

    def _something(self) -> None:
        agents = [each for each in self.job.agents if each.entry.lives and each.entry.state == "R"]
        if agents:
            agent = self._random.choice(agents)
            kind = self._random.choice(self.kinds)
            self.met[kind.__name__.strip("_"), agent.stage] += 1
            self.happened.append((self.job.now, kind.__name__.strip("_"), agent.name))
            kind(self, agent)

    def _later(self, happens: Callable[[], object], most: float) -> None:
        self.job.scheduler.at(self.job.now + self._random.random() * most, happens)

    # The faults

    def _agent_is_killed(self, agent: Agent) -> None:
        self.job.kill(agent)
        if self._random.random() < 0.7:
            self._later(lambda: self.job.replace(agent), 10.0)

    def _agent_stands_still(self, agent: Agent) -> None:
        self.job.freeze(agent, self._random.choice([0.5, 0.7, 1.1, 4.0]) * TTL_S)

    def _host_stands_still(self, agent: Agent) -> None:
        entries = [agent.entry, *(each.entry for each in (*agent.machine.supervisors[-1:], *agent.workers))]
        due = self.job.now + self._random.choice([0.5, 1.1, 4.0]) * TTL_S
        self._random.shuffle(entries)
        for entry in entries:
            self.job.processes.signal(entry, Signals.SIGSTOP)
            self.job.scheduler.at(due, lambda entry=entry: self.job.processes.signal(entry, Signals.SIGCONT))

    def _signal(self, agent: Agent) -> None:
        agent.signal(self._random.choice(_STOPPING))

    def _two_signals(self, agent: Agent) -> None:
        agent.signal(self._random.choice(_STOPPING))
        self._later(lambda: agent.signal(self._random.choice(_STOPPING)), self._random.choice([0.01, 5.0, 20.0]))

    def _notice(self, agent: Agent) -> None:
        agent.go_on = self._random.choice([None, True, len(self.job.agents) > self.job.meeting.low])
        agent.saves_in = self._random.choice([None, 1.0, 8.0])
        agent.signal(_NOTICE)

    def _worker_is_killed(self, agent: Agent) -> None:
        if agent.workers:
            worker = self._random.choice(agent.workers)
            self.job.kill_worker(agent, worker)

    def _worker_is_held(self, agent: Agent) -> None:
        if agent.workers:
            worker = self._random.choice(agent.workers)
            worker.entry.state = "D"
            self._later(lambda: self.job.processes.release(worker.entry), 30.0)

    def _supervisor_is_killed(self, agent: Agent) -> None:
        if agent.machine.supervisors:
            entry = agent.machine.supervisor.entry
            self.job.lose_supervisor(agent, lambda: self.job.processes.signal(entry, Signals.SIGKILL))

    def _supervisor_is_stopped(self, agent: Agent) -> None:
        if agent.machine.supervisors:
            self.job.processes.signal(agent.machine.supervisor.entry, Signals.SIGSTOP)

    def _supervisor_stands_still(self, agent: Agent) -> None:
        if agent.machine.supervisors:
            process = agent.machine.supervisor.process
            self.job.lose_supervisor(agent, lambda: self.job.scheduler.freeze(process))
            self.job.scheduler.at(
                self.job.now + self._random.choice([2.0, 6.0, 40.0]),
                lambda: None if process.killed else self.job.scheduler.thaw(process),
            )

    def _session_ends(self, agent: Agent) -> None:
        if agent.handler is not None:
            self.job.meeting.lose(agent.handler, "its session has ended")

    def _job_hangs(self, agent: Agent) -> None:
        if agent.works:
            self.job.hang(agent)

    def _node_joins(self, agent: Agent) -> None:
        self.job.add()


KINDS = (
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
)


def story(of: Faulty) -> str:
    """What has happened, as lines: time, who, what."""
    lines = [(when, who, f"FAULT: {what}") for when, what, who in of.happened]
    lines += [(when, each.name, f"{what} {of_}") for each in of.job.agents for when, what, of_ in each.story]
    lines += [
        (each.entered, each.entry.command, f"pid {each.entry.pid} started, {each.does}")
        for agent in of.job.agents
        for each in agent.machine.workers
    ]
    return "\n".join(f"{when - 1000:9.3f} {who}: {what}" for when, who, what in sorted(lines, key=lambda line: line[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--static", action="store_true", help="jobs of static, with its stores")
    args = parser.parse_args()
    made: type[Faulty] = Faulty
    if args.static:
        from simulation.static_faults import StaticFaulty

        made = StaticFaulty
    seeds = range(args.first, args.first + args.seeds) if args.seed is None else [args.seed]
    began, wrong = time.process_time(), 0
    codes, met, simulated = Counter[int | None](), Counter[tuple[str, str]](), 0.0
    for seed in seeds:
        faulty = made(seed)
        try:
            faulty.run()
        except (AssertionError, Stuck) as error:
            wrong += 1
            print(f"seed {seed}: {type(error).__name__}: {error}"[:2000])
        codes.update(faulty.job.codes)
        met.update(faulty.met)
        simulated += faulty.job.now - 1000
        if args.show:
            print(story(faulty))
    cost = (time.process_time() - began) / len(seeds)
    print(f"{len(seeds)} jobs, {wrong} wrong, {1000 * cost:.0f} ms each, {simulated / len(seeds):.0f} s simulated each")
    print("exit codes:", dict(sorted(codes.items(), key=str)))
    for kind in faulty.kinds:
        name = kind.__name__.strip("_")
        print(f"{name:24}", {stage: count for (each, stage), count in sorted(met.items()) if each == name})
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
