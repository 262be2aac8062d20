"""The service has lost its memory: a round goes on if all of its nodes come back with their places, else it is over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kits.eventually import eventually
from kits.unit.elastic_nodes import PATIENCE_S, Job, Node, in_round
from kits.unit.membership_steps import Leader, node
from kits.unit.memory_coordination import TimedSession
from msgspec import structs

from rdzv_plugins.elastic.keys import Assignment, Member
from rdzv_plugins.elastic.leading.quorum import seat_of
from rdzv_plugins.interfaces import Outcome

BACK_S = 11.0
PLACES = {
    name: Assignment(5, rank, 2, name, f"host-{name}", name, 7, "10.0.0.1", 1, master_addr="10.0.0.1", master_port=9)
    for rank, name in enumerate("ab")
}


def keeper(name: str, **changes: Any) -> Member:
    place = structs.replace(PLACES[name], **changes)
    return node(name, after=4, reached=5, known=5, keeps=place, seats=(seat_of(place, complete=True),))


def leaver(name: str, **changes: Any) -> Member:
    """It was in the round, and has left it."""
    return node(name, after=5, known=5, seats=(seat_of(PLACES[name], complete=True),), **changes)


# the leader's part


def test_round_goes_on_when_all_are_back():
    leader = Leader(1, 2, last_call=0)
    leader.hear(keeper("b"))
    assert leader.published == []
    assert "1 of 2 nodes of round 5 are back (host-b (pid 7))" in leader.machine.facts()
    leader.hear(keeper("a"))
    (declared,) = leader.published
    assert (declared.number, declared.state, declared.world) == (5, "complete", 2)
    assert (declared.master_addr, declared.master_port) == ("10.0.0.1", 9)
    assert leader.assigned == PLACES
    leader.lose("b")
    assert (leader.state, leader.round.cause) == ((5, "over"), "lost")
    leader.join("a")
    leader.complete()
    assert (leader.state, leader.ranks()) == ((6, "complete"), {"a": 0})


def test_who_takes_over_from_the_leader_knows_the_places():
    leader = Leader(1, 2, last_call=0)
    leader.hear(keeper("a"), keeper("b"))
    other = leader.successor(without=("a",))
    assert other.state == (5, "over")
    assert "host-a" in other.round.reason


@pytest.mark.parametrize("step", ["nothing", "half of its places"])
def test_leader_that_is_lost_before_the_round_is_declared(step: str):
    held = {} if step == "nothing" else {"a": PLACES["a"]}
    leader = Leader(1, 2, None, held, last_call=0)
    leader.hear(keeper("a"), keeper("b"))
    assert leader.state == (5, "complete")


def test_round_is_over_when_one_does_not_come_in_time():
    leader = Leader(1, 2, last_call=0)
    leader.hear(keeper("b"))
    leader.wait(BACK_S - 0.1)
    assert leader.published == []
    leader.wait(0.1)
    assert (leader.state, leader.round.cause) == ((5, "over"), "lost")
    assert leader.round.reason == ("the rendezvous has lost its memory, and 1 of 2 nodes came back within 11 s")
    leader.join("b")
    leader.complete()
    assert leader.ranks() == {"b": 0}
    assert leader.round.number == 6


def left(leader: Leader) -> None:
    leader.hear(leaver("a"))


def left_before(leader: Leader) -> None:
    leader.say("b", keeps=None, after=5)
    leader.hear(keeper("a"))


def server_has_come_anew(leader: Leader) -> None:
    leader.say("b", server=0)
    leader.hear(node("d", serves=True))


@pytest.mark.parametrize("event", [left, left_before, server_has_come_anew])
def test_round_is_over_at_once_when_nobody_of_it_can_be_elsewhere(event: Any):
    leader = Leader(1, 3, last_call=0)
    leader.hear(keeper("b"))
    event(leader)
    assert leader.state == (5, "over")


def joins_again(leader: Leader) -> None:
    leader.say("b", keeps=None, after=5)


def lost(leader: Leader) -> None:
    leader.lose("b")


def serves_anew(leader: Leader) -> None:
    leader.hear(node("d", serves=True))


def other_size(leader: Leader) -> None:
    leader.hear(keeper("a", world=3))


def other_store(leader: Leader) -> None:
    leader.hear(keeper("a", master_port=10))


def same_rank(leader: Leader) -> None:
    leader.hear(keeper("a", rank=1))


def rank_beyond(leader: Leader) -> None:
    leader.hear(keeper("a", rank=2))


@pytest.mark.parametrize("event", [joins_again, lost, serves_anew, other_size, other_store, same_rank, rank_beyond])
def test_nothing_begins_while_a_node_of_a_round_that_cannot_be_whole_may_work_elsewhere(event: Any):
    leader = Leader(1, 3, last_call=0)
    leader.hear(node("c"), keeper("b"))
    event(leader)
    leader.wait(BACK_S - 0.1)
    assert (leader.published, leader.assigned) == ([], {})
    assert "or can no longer be at work, within 11 s" in leader.machine.facts()
    leader.wait(0.1)
    leader.join(*leader.members)
    leader.complete()
    assert leader.state == (6, "complete")


def test_who_has_left_a_round_waits_for_who_may_still_be_in_it():
    """Its workers have failed; the service has lost its memory; the other node is cut off, and works on for a while."""
    leader = Leader(1, 2, last_call=0)
    leader.hear(leaver("b"))
    leader.wait(BACK_S - 0.1)
    assert leader.assigned == {}
    leader.wait(0.1)
    assert leader.number == 6


@pytest.mark.parametrize("how", ["it has left, too", "it served"])
def test_who_has_left_a_round_waits_for_nobody_else(how: str):
    leader = Leader(1, 2, last_call=0)
    leader.hear(leaver("b", server=0 if how == "it served" else -1))
    if how != "it served":
        assert leader.assigned == {}
        leader.hear(leaver("a"))
    assert leader.number == 6


def test_newer_round_of_which_somebody_has_heard_comes_first():
    leader = Leader(1, 3, last_call=0)
    leader.hear(keeper("a"), keeper("b"), node("c", known=6))
    assert leader.published == []
    leader.wait(BACK_S)
    assert leader.state == (6, "over")
    leader.join("a", "b")
    assert leader.number == 7


def test_spare_begins_nothing_while_nodes_of_the_round_may_come():
    leader = Leader(1, 1, last_call=0)
    leader.hear(node("c", known=5))
    leader.wait(BACK_S - 0.1)
    assert not leader.assigned
    leader.wait(0.1)
    assert leader.number == 6


def test_last_call_waits_for_them_too():
    leader = Leader(1, 3, last_call=5)
    leader.hear(node("c"))
    leader.hear(node("d", known=5))
    leader.wait(6)
    assert not leader.assigned
    assert (leader.machine.deadline() or 0) > leader.now, "else the leader would turn and turn"
    leader.wait(BACK_S - 6)
    assert leader.number == 6


def test_newcomer_who_has_heard_of_nothing_makes_way():
    leader = Leader(1, 2, last_call=0)
    leader.hear(node("c"))
    assert leader.number == 1
    leader.hear(keeper("a"), keeper("b"))
    assert leader.state == (5, "complete")


def test_keeper_of_another_place_is_not_believed():
    leader = Leader(1, 2, last_call=0)
    leader.hear(keeper("a"), node("b", after=4, keeps=PLACES["a"]))
    leader.wait(BACK_S)
    assert leader.state == (5, "over")


def test_node_that_is_ahead_of_the_service_gets_in():
    """It was too late to keep its round, and newcomers have begun again from 1."""
    leader = Leader(1, 2, last_call=0)
    leader.hear(node("c"))
    leader.complete()
    leader.hear(node("a", after=5, known=5))
    assert (leader.state, leader.round.cause) == ((1, "over"), "came")
    leader.join("c")
    assert leader.number == 6


def test_no_number_is_begun_twice():
    """A round was being formed when the service lost its memory."""
    leader = Leader(1, 1, last_call=0)
    seat = seat_of(structs.replace(PLACES["a"], round=1, rank=0, world=1), complete=True)
    leader.hear(node("a", store=(2, "10.0.0.1", 9), known=1, after=1, seats=(seat,)))
    assert leader.number == 3


# a node's part


@pytest.fixture
def job(request: pytest.FixtureRequest) -> Iterator[Job]:
    """The nodes of a round are to be back within the time to live and a second: nobody here is late, unless asked."""
    with Job("1:2", last_call_timeout=0, ttl=getattr(request, "param", PATIENCE_S)) as job:
        job.service.session = TimedSession
        yield job


def two(job: Job) -> tuple[Node, Node]:
    first = job.node()
    in_round([first])
    second = job.node()
    joined = second.join()
    eventually(first.handler.num_nodes_waiting, lambda: "the second is welcome")
    again = first.join()
    assert {again.result(PATIENCE_S).world_size, joined.result(PATIENCE_S).world_size} == {2}
    return first, second


def held(nodes: tuple[Node, ...]) -> bool:
    return all(node.handler.holding.sure() for node in nodes)


def test_nodes_keep_their_round_and_lose_it_later_as_ever(job: Job):
    first, second = nodes = two(job)
    number = job.round.number
    before = [node.handler._joining.place for node in nodes]
    job.service.forget()
    assert not any(node.handler.holding.ended() or node.handler.must_rejoin() for node in nodes)
    eventually(lambda: held(nodes), lambda: "the round holds again")
    assert (job.round.number, job.round.state, job.round.world) == (number, "complete", 2)
    assert [node.handler._joining.place for node in nodes] == before
    assert not any(node.handler.must_rejoin() for node in nodes)
    second.die()
    eventually(first.handler.num_nodes_waiting, lambda: "the loss is noticed")
    assert first.join().result(PATIENCE_S).world_size == 1
    assert job.round.number == number + 1


@pytest.mark.parametrize("job", [7], indirect=True)  # the time in which it is looked at what holds meanwhile
def test_round_does_not_hold_before_all_are_back(job: Job):
    first, second = two(job)
    second.backend.unreachable = True
    job.service.forget()
    eventually(lambda: job.service.value(f"members/{first.id}"), lambda: "the first is back")
    assert not first.handler.holding.sure()
    assert 0 < first.handler.holding.until() < 1e-6, "not known, and not over either"
    assert not first.handler.must_rejoin()
    eventually(first.handler.num_nodes_waiting, lambda: "the second does not come")
    assert job.round.reason == "the rendezvous has lost its memory, and 1 of 2 nodes came back within 8 s"


def test_failure_in_the_meantime_is_asked_about_when_the_nodes_are_back(job: Job):
    first, _ = nodes = two(job)
    job.service.forget()
    assert first.handler.peer_lost() is False
    assert held(nodes)


@pytest.mark.parametrize("why", ["silent", "cannot say", "over", "knows"])
def test_node_begins_anew(job: Job, why: str, monkeypatch: pytest.MonkeyPatch):
    first, second = two(job)
    if why == "silent":  # the service may have ended its session before it lost its memory
        monkeypatch.setattr(TimedSession, "heard", False)
    elif why == "cannot say":
        monkeypatch.delattr(TimedSession, "known_until")
    elif why == "over":
        second.handler.leave(Outcome("lost", "a signal"))
        eventually(first.handler.must_rejoin, lambda: "the round is over")
    if why == "knows":
        first.backend.lose()
    else:
        job.service.forget()
    eventually(lambda: first.handler._link.opened == 2, lambda: "a session in which it has no round")
    assert first.handler.must_rejoin()
    assert first.handler.holding.until() == 0
