"""Jobs of ``static`` to which anything happens at any moment, from a seed: ``python -m simulation.faults --static``."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from simulation.agent import Agent
from simulation.faults import KINDS, Faulty
from simulation.scheduler import Process
from simulation.static_jobs import StaticJob

_FAULTS = 4


class StaticFaulty(Faulty):
    """One job of ``static``: some nodes come late, or never."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.met: Counter[tuple[str, str]] = Counter()
        self.happened: list[tuple[float, str, str]] = []
        self.kinds = STATIC_KINDS
        self.static = self.job = StaticJob(seed=seed, starts=False)
        self._random = random = self.job.scheduler.random
        self.static.nodes = self.static.static.low = random.choice([1, 2, 2, 3, 4])
        self.job.plan, self.job.options = self._plan, self._options()
        self._nodes = 0
        self._digest = hashlib.sha256()
        self.job.network.on_send = self._sent
        for rank in range(self.static.nodes):
            if rank == 0 or random.random() < 0.95:
                self._nodes += 1
                after = random.random() * random.choice([3.0, 3.0, 3.0, 40.0])
                self.job.scheduler.at(self.job.now + after, lambda rank=rank: self.static.join(rank))
        for _ in range(random.choice([0, 1, 1, 2, 3, _FAULTS])):
            self.job.scheduler.at(self.job.now + random.random() * 25, self._something)

    @property
    def digest(self) -> str:
        """Of every message between two processes, and when it was sent."""
        return self._digest.hexdigest()

    def _sent(self, source: Process, target: Process, message: object) -> None:
        self._digest.update(f"{self.job.now} {source} {target} {message!r}".encode())

    def _host_is_lost(self, agent: Agent) -> None:
        self.static.crash(agent)
        if self._random.random() < 0.7:
            self._later(lambda: self.job.replace(agent), 60.0)

    def _whole_host_stands_still(self, agent: Agent) -> None:
        self.static.hinder(agent, "stands still")
        self._host_stands_still(agent)

    def _is_cut_off(self, agent: Agent) -> None:
        self.static.cut(agent, self._random.choice([3.0, 20.0, 60.0]), ways=self._random.choice(["both", "to", "from"]))

    def _connections_are_reset(self, agent: Agent) -> None:
        self.static.reset(agent)

    def _stands_still_for_long(self, agent: Agent) -> None:
        self.job.freeze(agent, self._random.choice([15.0, 60.0]))

    def _another_with_its_rank(self, agent: Agent) -> None:
        self._another(agent, host=f"10.0.1.{len(self.job.agents)}")

    def _another_on_its_host(self, agent: Agent) -> None:
        self._another(agent)

    def _other_settings(self, agent: Agent) -> None:
        wrong = self._random.choice([{"nodes": self.static.nodes + 1}, {"run_id": "other"}])
        self._another(agent, host=f"10.0.1.{len(self.job.agents)}", **wrong)

    def _another(self, agent: Agent, **given: Any) -> None:
        if self.static.nodes > 1 and self.static.static.ended is None:  # otherwise it would be another job
            self.static.join(self.static.given[agent.name].rank, **given)


_OF_OTHERS = (Faulty._session_ends, Faulty._node_joins, Faulty._host_stands_still)
STATIC_KINDS = (
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
