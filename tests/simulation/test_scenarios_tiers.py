"""``store=tiered``: a node's workers have a proxy in front of the store, which may lose it alone."""

from __future__ import annotations

import pytest

from rdzv_plugins.elastic import current_round
from simulation.test_scenarios_elastic import LONG, SEEDS, at_work, ends, rounds
from simulation.world import Node, Work, World

pytestmark = pytest.mark.parametrize("seed", SEEDS)


def lose_store(world: World, node: Node) -> None:
    """Its proxy is cut off from the store, and with it its workers."""
    world.scheduler.spawn(node.process, "proxy", lambda: node.handler._store.lose("no answer for 5 s"))


def ranked(seed: int, *seconds: float, **options: float) -> World:
    """A job whose node ranks have work for so long."""
    world = World(seed, 0, len(seconds), len(seconds), store="tiered", linger=300.0, **options)
    for rank, each in enumerate(seconds):
        world.add(rank=rank, work=Work(each))
    at_work(world)
    return world


def test_a_node_that_has_lost_the_store_makes_all_meet_again_and_costs_no_restart(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(seed, 3, 3, 3, LONG, store="tiered")
    at_work(world)
    lost, *others = world.nodes
    lose_store(world, lost)
    world.until(lambda: all("is cut off from the workers' store" in str(each.handler._cache.over) for each in others))
    for each in world.nodes:  # workers of all fail with those of that node
        each.fail_with(1)
    world.until(lambda: rounds(world) == [2, 2, 2])
    assert [each.restarts for each in world.nodes] == [0, 0, 0]
    assert ends(world.run()) == ["done"] * 3
    assert [each.levelname for each in caplog.records if each.name == current_round.__name__].count("WARNING") == 1
    assert [each.handler._store.left for each in world.nodes] == [2, 2, 2], "before each round"


def test_workers_that_fail_before_their_node_has_heard_that_it_has_lost_the_store_cost_no_restart(seed: int) -> None:
    world = World(seed, 2, 2, 2, LONG, store="tiered")
    at_work(world)
    world[1].handler._store.cut_off = True
    world[1].fail_with(1)
    world.until(lambda: rounds(world) == [2, 2])
    assert [each.restarts for each in world.nodes] == [0, 0]
    world.run()


def test_a_node_that_is_done_may_lose_the_store(seed: int) -> None:
    world = ranked(seed, 20.0, 60.0)
    world.until(lambda: world[0].end == "done")
    assert world[0].ended_at is None, "it serves the store, and stays"
    lose_store(world, world[0])
    world.run()
    assert (rounds(world), ends(world)) == ([1, 1], ["done", "done"])


def test_a_node_that_is_done_stays_for_those_whose_proxies_need_its_own(seed: int) -> None:
    world = ranked(seed, 60.0, 20.0, 60.0, 60.0, fanout=2)
    world.run()
    assert rounds(world) == [1] * 4
    assert (world[1].ended_at or 0.0) >= 60.0
    assert ends(world) == ["done"] * 4
