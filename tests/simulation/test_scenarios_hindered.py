"""Nodes that are in the others' way: the job goes on without them if it can, and says who they are."""

from __future__ import annotations

import pytest

from rdzv_plugins.runtime import Signals
from simulation import troubles
from simulation.agent import Options
from simulation.job import Job
from simulation.test_scenarios_elastic import LONG, at_work, ends
from simulation.workers import Does
from simulation.world import World

pytestmark = pytest.mark.parametrize("seed", [1, 2])


def test_a_node_that_does_not_join_again_is_left_out_after_a_while(seed: int) -> None:
    def plan(group: object, local_rank: int) -> Does:
        stubborn = group.generation == 1 and group.group_rank == 3  # type: ignore[attr-defined]
        return Does(runs=300.0 if stubborn else 60.0, ends_in=None if stubborn else 0.1)

    options = Options(shutdown_timeout=200.0)
    job = Job(4, plan, options, low=2, seed=seed, together=False, rejoin_timeout=10.0)
    job.until(job.works)
    stubborn = next(each for each in job.agents if each.groups[0].group_rank == 3)
    leaves, *rest = [each for each in job.agents if each is not stubborn]
    leaves.signal(Signals.SIGTERM)
    left_at = job.now
    job.until(lambda: all(len(each.groups) == 2 for each in rest))
    assert 10.0 <= job.now - left_at < 20.0
    job.run()
    assert [each.exit_code for each in rest] == [0, 0]


def test_nodes_that_cannot_reach_each_other_fail_together_by_name(seed: int) -> None:
    world = World(seed, 2, 2, 2)
    for each in world.nodes:
        each.hindered = True
    troubles.part(world, world[0], world[1], 200.0)
    world.run()
    assert ends(world) == ["RendezvousFailed"] * 2
    for each in world.nodes:
        assert "cannot reach" in str(each.error)
        assert each.ended_at is not None
        assert each.ended_at < 60.0


def test_a_leader_that_leaves_says_why_before_it_goes(seed: int) -> None:
    world = World(seed, 3, 2, 3, LONG)
    at_work(world)
    leader = world.leader
    troubles.leave(world, leader, "it is preempted")
    rest = [each for each in world.nodes if each is not leader]
    world.until(lambda: all(len(each.places) == 2 for each in rest))
    for each in rest:
        assert any(who == each.name and "it is preempted" in " ".join(what) for _, who, what in world.story)
    world.run()
