"""The leader goes, or the service does not answer, at every step of a round: the others go on, as stories."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import pytest

from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Round, decode
from rdzv_plugins.interfaces import Outcome
from simulation import troubles
from simulation.test_scenarios_elastic import at_work, ends
from simulation.world import Node, Work, World

LONG = Work(seconds=100.0)
LOST = pytest.mark.parametrize("lost", ["request", "answer"])
"""What was asked has not been done, or has been, and nobody hears of it."""
STEPS = {"serve": "node/", "reach": "node/", "complete": keys.ROUND}
"""What the leader writes first in each: the first assignments ask rank 0 to serve."""

Lost = Literal["request", "answer"]


def nothing(_: object) -> None:
    """The network loses it, and that is all."""


def at_step(world: World, step: str, lost: Lost, happens: Callable[..., object]) -> None:
    """This happens when the leader writes what begins this step of a round."""
    if step == "reach":
        world.service.once("put", "node/", lambda _: world.service.once("put", "node/", happens, lost=lost), lost="")
    else:
        world.service.once("put", STEPS[step], happens, lost=lost)


def node_of(world: World, client: object) -> Node:
    return next(each for each in world.nodes if each.process is client.process)  # type: ignore[attr-defined]


def rounds(world: World) -> list[tuple[int, str]]:
    """All that leaders have said of rounds."""
    told = [event.value for event in world.service.store.history if event.key == keys.ROUND]
    return [(each.number, each.state) for each in (decode(Round, value) for value in told if value is not None)]


@LOST
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("by_connection", [True, False])
def test_the_leader_is_killed(step: str, lost: Lost, by_connection: bool) -> None:
    world = World(1, 3, 2, 3, LONG, by_connection=by_connection)
    dead: list[Node] = []

    def die(client: object) -> None:
        dead.append(node_of(world, client))
        troubles.kill(world, dead[0])

    at_step(world, step, lost, die)
    world.until(lambda: dead)
    world.add()
    at_work(world)
    assert [each.place.world for each in world.living if each.place is not None] == [3, 3, 3]
    assert world.leader is not dead[0]
    assert sorted(ends(world.run())) == ["", "done", "done", "done"]


@LOST
@pytest.mark.parametrize("step", STEPS)
def test_the_leader_loses_its_session_and_comes_back(step: str, lost: Lost) -> None:
    world = World(1, 3, 3, 3, LONG)
    at_step(world, step, lost, lambda client: world.service.end(client.session))
    assert ends(world.run()) == ["done"] * 3


@LOST
@pytest.mark.parametrize(
    ("request_", "key"),
    [
        ("create", keys.LEADER),
        ("list", ""),
        ("list", "node/"),  # which is only for a line of the log: who is in the round
        ("watch", keys.MEMBERS),
        ("put", "node/"),
        ("put", keys.ROUND),
        ("put", keys.MEMBERS),
    ],
)
def test_the_service_does_not_answer_once(
    request_: str, key: str, lost: Lost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = World(1, 2, work=LONG)
    asked: list[object] = []
    world.service.once(request_, key, asked.append, lost=lost)
    at_work(world)
    assert asked
    assert ends(world.run()) == ["done"] * 2


@LOST
def test_the_keys_of_a_node_that_is_lost_for_good_are_deleted_though_that_is_not_answered(lost: Lost) -> None:
    world = World(1, 2, work=LONG)
    at_work(world)
    gone = world[0].handler._registration.me.node_id
    asked: list[object] = []
    world.service.once("delete", f"node/{gone}", asked.append, lost=lost)
    troubles.replace(world, world[0])
    at_work(world, world[1], world[2])
    world.until(lambda: asked)
    assert ends(world.run()) == ["", "done", "done"]


def test_a_leader_that_was_replaced_writes_nothing() -> None:
    """Its writes are guarded by its key."""
    world = World(1, 2, work=LONG)
    store = world.service.store
    declared: list[bool] = []

    def replaced(_: object) -> None:
        store.delete(0, [keys.LEADER], None)
        world.scheduler.at(world.scheduler.now, lambda: declared.append(keys.ROUND in store.keys))

    world.service.once("put", keys.ROUND, replaced, lost="")
    at_work(world)
    assert declared == [False]
    assert all(number > 1 for number, state in rounds(world) if state == "complete")
    assert ends(world.run()) == ["done"] * 2


def test_the_end_of_a_round_is_written_before_the_places_of_the_next() -> None:
    """A service may split what the leader writes, and the leader be lost in between."""
    world = World(1, 2, work=Work(seconds=20.0, fails=(5.0,)), max_restarts=1)
    world.until(lambda: world[0].place is not None and world[0].place.round == 2)
    assert rounds(world) == [(1, "complete"), (1, "over"), (2, "complete")]
    written = [event.key for event in world.service.store.history if event.value is not None]
    over = [at for at, key in enumerate(written) if key == keys.ROUND][1]
    assert next(key for key in written[over + 1 :] if not key.startswith(keys.MEMBERS)).startswith("node/")
    world.run()


def test_a_list_of_which_the_sequel_is_forgotten_is_made_again() -> None:
    world = World(1, 2, work=LONG)
    for _ in range(3):
        world.service.once("watch", keys.MEMBERS, lambda _: world.service.store.compact(), lost="")
    assert ends(world.run()) == ["done"] * 2


@pytest.mark.parametrize("lost", ["request", "answer", ""])
def test_a_killed_node_is_lost_at_once_whatever_the_service_makes_of_its_session(lost: Literal["request", ""]) -> None:
    """It is asked to end that session, and may take its time; the session's own end is no news."""
    world = World(1, 3, 2, 3, Work(seconds=300.0), ttl=60.0, by_connection=False)
    at_work(world)
    world.after(1.0)  # the leader sees all others live
    victim = next(each for each in world.nodes if each is not world.leader)
    asked: list[object] = []
    world.service.once("end_session", "", asked.append, lost=lost)
    troubles.kill(world, victim)
    killed_at = world.now
    rest = world.goes_on_without(victim)
    assert world.now < killed_at + 5.0
    assert asked
    world.after(100.0)
    assert [len(each.places) for each in rest] == [2, 2]
    world.run()


def test_a_node_that_leaves_is_not_taken_for_one_that_was_killed() -> None:
    world = World(1, 3, 2, 3, LONG, by_connection=False)
    at_work(world)
    asked: list[object] = []
    world.service.once("end_session", "", asked.append, lost="")
    troubles.leave(world, next(each for each in world.nodes if each is not world.leader))
    world.run()
    assert not asked


@pytest.mark.parametrize("ends_sessions", [True, False])
@pytest.mark.parametrize("done", [True, False])
def test_the_last_words_of_a_node_that_is_killed_are_heard_late(done: bool, ends_sessions: bool) -> None:
    """If its workers had succeeded, its end is no loss, and nobody is disturbed. Else it is not waited for.

    That its words come when it is known to be gone does not make it a member again, however long its session lasts.
    """
    world = World(1, 3, 2, 3, LONG, ttl=60.0, by_connection=False)
    world.service.ends_sessions = ends_sessions
    at_work(world)
    world.after(1.0)  # the leader sees all others live
    victim = next(each for each in world.nodes if each is not world.leader)
    rest = [each for each in world.nodes if each is not victim]
    says = victim.handler.note_done if done else victim.handler.peer_lost
    victim.works = False  # none of the others' workers fails
    world.service.faults.pushes_take = 3.0
    world.service.once("put", keys.MEMBERS, lambda _: troubles.kill(world, victim), lost="answer")
    world.scheduler.spawn(victim.process, "says", says)
    world.until(lambda: not victim.lives)
    world.after(30.0)
    assert [len(each.places) for each in rest] == ([1, 1] if done else [2, 2])
    assert all(each.works for each in rest)
    world.run()


def test_of_however_many_nodes_that_are_killed_at_once_the_leader_asks_as_little() -> None:
    def asks(killed: int) -> int:
        world = World(1, 9, 2, 9, LONG, ttl=60.0, by_connection=False)
        at_work(world)
        leader = world.leader
        before = world.service.asked[leader.name]
        for each in [each for each in world.nodes if each is not leader][:killed]:
            troubles.kill(world, each)
        at_work(world)
        world.close()
        return world.service.asked[leader.name] - before

    assert asks(6) < asks(2) + 6, "ends of sessions are asked for one by one"


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_node_that_leaves_says_why_though_it_is_heard_late(who: str) -> None:
    """The leader decides on its own end, and goes only then."""
    world = World(1, 3, 2, 3, LONG)
    at_work(world)
    leaves = next(each for each in world.nodes if (each is world.leader) is (who == "leader"))
    world.service.faults.pushes_take = 0.2
    leaves.leave(Outcome("lost", "it got SIGTERM"))
    leaves.hindered = True
    world.goes_on_without(leaves)
    (reason,) = {what[-1] for _, _, what in world.story if what[0] == "hears that round 1 is over:"}
    assert reason.endswith("was lost: it got SIGTERM")
    world.run()


def test_who_follows_a_killed_leader_leaves_it_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody dials it again; a service that ends no sessions is not asked to, which would be worth a warning."""
    world = World(1, 3, 2, 3, LONG, ttl=60.0, by_connection=False)
    world.service.ends_sessions = False
    at_work(world)
    world.after(3.0)
    leader, dial, dialled = world.leader, world.network.dial, list[str]()
    troubles.kill(world, leader)
    world.goes_on_without(leader)
    world.network.dial = lambda end, host, *how: (dialled.append(host), dial(end, host, *how))  # type: ignore
    world.after(40.0)
    assert leader.process.host not in dialled
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
    world.run()


def test_what_an_earlier_session_tells_late_is_no_news() -> None:
    """That a round is complete reaches a node when that is over, and it has entered another in a new session."""
    world = World(1, 2, work=LONG, by_connection=False)
    late: list[Node] = []

    def lose_session(client: object) -> None:
        late.append(next(each for each in world.nodes if each is not node_of(world, client)))
        faults = world.service.faults
        faults.calls_take = {late[0].name: 4.0}
        (session,) = [each for each in world.service.sessions if world.service.sessions[each] is late[0].process]
        world.scheduler.at(world.scheduler.now + 0.5, lambda: (faults.calls_take.clear(), world.service.end(session)))

    world.service.once("put", keys.ROUND, lose_session, lost="")
    world.after(10.0)
    at_work(world)
    assert [late[0].places[0].round, len(late[0].places)] == [2, 1]
    world.run()
