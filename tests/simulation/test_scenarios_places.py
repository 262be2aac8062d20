"""Several endpoints, each served by a node: when the node that serves is lost the others go on at another one."""

from __future__ import annotations

import pytest

from simulation import troubles
from simulation.test_scenarios_elastic import LONG, SEEDS, at_work, ends, rounds
from simulation.world import World

pytestmark = pytest.mark.parametrize("seed", SEEDS)


def test_the_last_of_several_endpoints_serves_when_two_are_lost_one_after_the_other(seed: int) -> None:
    world = World(seed, 5, 2, 5, LONG, places=3)
    for left in (5, 4, 3):
        at_work(world)
        assert len(world.living) == left
        if left > 3:
            troubles.kill(world, world.server)
            world.after(1.0)
    assert world.server is world[2]
    assert sorted(ends(world.run())) == ["", "", "done", "done", "done"]


@pytest.mark.parametrize("away", ["is cut off", "stands still"])
def test_a_node_that_served_and_was_away_finds_itself_replaced_and_joins_again(seed: int, away: str) -> None:
    world = World(seed, 3, 2, 3, LONG, places=2)
    at_work(world)
    server = world.server
    server.hindered = True
    if away == "is cut off":
        troubles.isolate(world, [server], 40.0)
    else:
        troubles.freeze(world, server, 40.0)
    world.until(lambda: sum(len(each.places) == 2 for each in world.nodes) == 2)
    assert len(server.places) == 1
    world.after(45.0)
    at_work(world, *world.nodes)
    assert [each.places[-1].world for each in world.nodes] == [3, 3, 3]
    assert ends(world.run()) == ["done"] * 3


def test_who_is_less_than_half_begins_no_round_of_its_own(seed: int) -> None:
    world = World(seed, 5, 2, 5, LONG, places=3)
    at_work(world)
    server = world.server
    apart = [server, next(each for each in world.nodes if each is not server)]
    for each in apart:
        each.hindered = True
    troubles.isolate(world, apart, 60.0)  # they are as many as the job needs
    world.after(50.0)
    assert [len(each.places) for each in apart] == [1, 1]
    assert sum(each.works and each.place is not None and each.place.round == 2 for each in world.nodes) == 3
    world.after(20.0)
    at_work(world, *world.nodes)
    assert ends(world.run()) == ["done"] * 5


def test_a_node_that_comes_back_serves_its_endpoint_again(seed: int) -> None:
    world = World(seed, 3, 3, 3, LONG, places=2)
    at_work(world)
    first = world.server
    troubles.replace(world, first)
    at_work(world, *(each for each in world.nodes if each is not first))
    second = world.server
    troubles.kill(world, second)
    world.add()
    at_work(world)
    assert world.server is not second
    world.run()
    assert rounds(world)[0] <= 3


@pytest.mark.parametrize("how", [troubles.kill, troubles.crash])
def test_a_spare_takes_the_place_of_the_node_that_served(seed: int, how: troubles.ToNode) -> None:
    world = World(seed, 3, 3, 3, LONG, places=3)
    at_work(world)
    spare = world.add()
    world.after(5.0)
    lost = world.server
    how(world, lost)
    at_work(world, *(each for each in world.nodes if each is not lost))
    assert spare.places[-1].round == 2
    assert sorted(ends(world.run())) == ["", "done", "done", "done"]
