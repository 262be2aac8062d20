"""A service that has lost its memory: the round goes on if all of its nodes come back, else it is over. As stories."""

from __future__ import annotations

import pytest

from rdzv_plugins.elastic import keys
from simulation import troubles
from simulation.test_scenarios_elastic import rounds
from simulation.world import TTL_S, Work, World

LONG = Work(seconds=200.0)


def at_work(nodes: int = 2, *, most: int | None = None, **options: float) -> World:
    world = World(1, nodes, 1, most or nodes, LONG, last_call_timeout=1.0, by_connection=False, **options)
    world.until(lambda: len(world.living) == nodes and world.all_work())
    return world


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
    assert f"members/{world[0].handler._registration.me.node_id}" in world.service.store.keys, "it is back"
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


def test_nothing_begins_beside_a_node_that_may_be_at_work() -> None:
    """Its agent stands still as the service is restarted, and another node is lost then: its workers may run."""
    world = at_work(3)
    stands, lost = [each for each in world.nodes if each is not world.leader]
    troubles.freeze(world, stands, 4.0)
    troubles.restart_service(world, 0.5, memory=False)
    world.after(0.6)
    world.until(lambda: f"members/{lost.handler._registration.me.node_id}" in world.service.store.keys)
    world.after(0.5)
    troubles.kill(world, lost)
    world.until(lambda: all(len(each.places) > 1 for each in world.living))
    assert len({each.places[1].which for each in world.living}) == 1, "they begin the second round together"
    world.run()


def test_nobody_waits_for_a_node_whose_last_round_was_an_earlier_one() -> None:
    """A spare of two rounds: it can be at work in neither."""
    world = World(1, 3, 2, 2, LONG, last_call_timeout=1.0, by_connection=False, max_restarts=1)
    world.until(lambda: sum(each.works for each in world.nodes) == 2)
    world.after(2.0)
    apart = next(each for each in world.nodes if each.works and each is not world.leader)
    rest = [each for each in world.nodes if each is not apart]
    troubles.cut(world, apart, 15.0)
    world.until(lambda: world.all_work(*rest))
    world.after(20.0)
    world.service.once("put", "node/", lambda _: troubles.restart_service(world, 0.5, memory=False), lost="request")
    fails = next(each for each in rest if each is not world.leader)
    began = world.now
    world.failed(fails)
    fails.fail_with(2)
    world.until(lambda: sum(each.works and each.places[-1].round == 3 for each in world.nodes) == 2)
    assert world.now < began + TTL_S - 1.0
    world.run()


def test_a_service_that_gives_a_revision_again_is_led_all_the_same() -> None:
    world = at_work(1, most=2)
    store = world.service.store
    before = store.keys[keys.LEADER][0].revision
    troubles.restart_service(world, 1.0, memory=False)
    world.after(1.1)
    world.until(lambda: keys.LEADER in store.keys)
    assert store.keys[keys.LEADER][0].revision == before
    late = world.add()
    world.until(lambda: late.works, limit=30.0)
    world.run()
