"""A service that has lost its memory: the round goes on if all of its nodes come back, else it is over. As stories."""

from __future__ import annotations

import pytest

from simulation import troubles
from simulation.world import TTL_S, Work, World

LONG = Work(seconds=200.0)


def at_work(nodes: int = 2, *, low: int = 1, work: Work = LONG, **options: float) -> World:
    world = World(1, nodes, low, nodes, work, last_call_timeout=1.0, by_connection=False, **options)
    world.until(lambda: len(world.living) == nodes and world.all_work())
    return world


def rounds(world: World) -> list[int]:
    return [len(each.places) for each in world.nodes]


def test_a_round_that_was_kept_is_lost_later_as_ever() -> None:
    world = at_work(3)
    troubles.restart_service(world, 1.0, memory=False)
    world.until(lambda: all(each.handler.holding.sure() for each in world.nodes))
    world.after(10.0)
    assert rounds(world) == [1, 1, 1]
    troubles.kill(world, world[1])
    world.until(lambda: rounds(world) == [2, 1, 2])
    assert world[0].place is not None
    assert world[0].place.round == 2
    world.run()


def test_a_round_holds_only_when_all_are_back_and_is_over_when_one_does_not_come() -> None:
    world = at_work()
    troubles.restart_service(world, 1.0, memory=False)
    troubles.cut(world, world[1], 100.0)
    world.after(4.0)
    assert f"members/{world[0].handler._self.me.node_id}" in world.service.store.keys, "it is back"
    assert not world[0].handler.holding.sure()
    assert 0 < world[0].handler.holding.until() < world[0].runtime.now(), "not known, and not over either"
    assert not world[0].handler.must_rejoin()
    world.until(lambda: len(world[0].places) == 2)
    (reason,) = [what[-1] for _, who, what in world.story if who == "n0" and "is over" in what[0]]
    assert "1 of 2 nodes" in reason
    world.close()


def test_a_failure_in_the_meantime_is_asked_about_when_the_nodes_are_back() -> None:
    world = World(1, 0, 2, 2, max_restarts=1, by_connection=False)
    world.add(work=Work(seconds=30.0, fails=(10.0,)))
    world.add()
    world.until(lambda: world.all_work() and world.living)
    world.after(9.0)
    troubles.restart_service(world, 2.0, memory=False)
    world.run()
    assert [each.end for each in world.nodes] == ["done", "done"]
    assert world[0].restarts == 1
    assert rounds(world) == [2, 2]


@pytest.mark.parametrize("why", ["it was down for long", "it has ended a session", "a node has left"])
def test_nodes_begin_anew_where_their_round_may_be_over(why: str) -> None:
    world = at_work()
    if why == "a node has left":
        troubles.leave(world, world[1])
        world.until(lambda: world[0].handler.must_rejoin())
    if why == "it has ended a session":
        world.service.end(min(world.service.store.leases))
    else:
        troubles.restart_service(world, 2 * TTL_S if why == "it was down for long" else 1.0, memory=False)
    world.until(lambda: len(world[0].places) == 2 and world.all_work())
    world.run()
