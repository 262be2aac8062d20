"""Jobs of ``static`` to which anything happens at any moment, from a seed: some nodes come late, or never."""

from __future__ import annotations

from random import Random
from typing import Any

from simulation.agent import Agent
from simulation.faults import KINDS, Faulty
from simulation.static_jobs import StaticJob


class StaticFaulty(Faulty):
    """One job of ``static``."""

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
        self._another(agent)

    def _other_settings(self, agent: Agent, rng: Random) -> None:
        wrong = rng.choice([{"nodes": self.static.nodes + 1}, {"run_id": "other"}])
        self._another(agent, host=f"10.0.1.{len(self.job.agents)}", **wrong)

    def _another(self, agent: Agent, **given: Any) -> None:
        if self.static.nodes > 1 and self.static.static.ended is None:  # otherwise it would be another job
            self.static.join(self.static.given[agent.name].rank, **given)


_OF_OTHERS = (Faulty._session_ends, Faulty._node_joins, Faulty._host_stands_still)
StaticFaulty.kinds = STATIC_KINDS = (
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
