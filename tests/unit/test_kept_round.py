"""The service has lost its memory: what a leader makes of the nodes of a round that come back, or do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kits.unit.membership_steps import Leader, node
from msgspec import structs

from rdzv_plugins.elastic.keys import Assignment, Member
from rdzv_plugins.elastic.leading.quorum import seat_of

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


def of(*members: Member, most: int = 2, last_call: float = 0) -> Leader:
    """Who leads hears of these first."""
    leader = Leader(1, most, last_call=last_call)
    leader.hear(*members)
    return leader


def test_round_goes_on_when_all_are_back_and_is_lost_later_as_ever():
    leader = of(keeper("b"))
    assert leader.published == []
    facts = leader.machine.facts()
    assert "1 of 2" in facts
    assert "host-b" in facts
    leader.hear(keeper("a"))
    (declared,) = leader.published
    assert (declared.number, declared.state, declared.world) == (5, "complete", 2)
    assert (declared.master_addr, declared.master_port) == ("10.0.0.1", 9)
    assert leader.assigned == PLACES
    other = leader.successor(without=("a",))
    assert other.state == (5, "over"), "who takes over knows the places"
    assert "host-a" in other.round.reason
    leader.lose("b")
    assert (leader.state, leader.round.cause) == ((5, "over"), "lost")
    leader.join("a")
    leader.complete()
    assert (leader.state, leader.ranks()) == ((6, "complete"), {"a": 0})


@pytest.mark.parametrize("held", [{}, {"a": PLACES["a"]}], ids=["nothing", "half of its places"])
def test_leader_that_is_lost_before_the_round_is_declared(held: dict[str, Assignment]):
    leader = Leader(1, 2, None, held, last_call=0)
    leader.hear(keeper("a"), keeper("b"))
    assert leader.state == (5, "complete")


def test_round_is_over_when_one_does_not_come_in_time():
    leader = of(keeper("b"))
    leader.wait(BACK_S - 0.1)
    assert leader.published == []
    leader.wait(0.1)
    assert (leader.state, leader.round.cause) == ((5, "over"), "lost")
    assert "1 of 2 nodes" in leader.round.reason
    leader.join("b")
    leader.complete()
    assert (leader.number, leader.ranks()) == (6, {"b": 0})


def joins_again(leader: Leader) -> None:
    leader.say("b", keeps=None, after=5)


def hears(member: Member) -> Callable[[Leader], object]:
    return lambda leader: leader.hear(member)


NOBODY_IS_ELSEWHERE: dict[str, Callable[[Leader], object]] = {
    "the other has left": hears(leaver("a")),
    "this one had left": lambda leader: (joins_again(leader), leader.hear(keeper("a"))),
    "the server has come anew": lambda leader: (leader.say("b", server=0), leader.hear(node("d", serves=True))),
}
SOMEBODY_MAY_BE: dict[str, Callable[[Leader], object]] = {
    "one joins again": joins_again,
    "one is lost": lambda leader: leader.lose("b"),
    "another serves": hears(node("d", serves=True)),
    "another size": hears(keeper("a", world=3)),
    "another store": hears(keeper("a", master_port=10)),
    "the same rank": hears(keeper("a", rank=1)),
    "a rank beyond": hears(keeper("a", rank=2)),
}


@pytest.mark.parametrize("event", NOBODY_IS_ELSEWHERE)
def test_round_is_over_at_once_when_nobody_of_it_can_be_elsewhere(event: str):
    leader = of(keeper("b"), most=3)
    NOBODY_IS_ELSEWHERE[event](leader)
    assert leader.state == (5, "over")


@pytest.mark.parametrize("event", SOMEBODY_MAY_BE)
def test_nothing_begins_while_a_node_of_a_round_that_cannot_be_whole_may_work_elsewhere(event: str):
    leader = of(node("c"), keeper("b"), most=3)
    SOMEBODY_MAY_BE[event](leader)
    leader.wait(BACK_S - 0.1)
    assert (leader.published, leader.assigned) == ([], {})
    assert "within 11 s" in leader.machine.facts()
    leader.wait(0.1)
    leader.join(*leader.members)
    leader.complete()
    assert leader.state == (6, "complete")


@pytest.mark.parametrize(
    "first",
    [
        leaver("b"),  # its workers have failed, and the other node is cut off, and works on for a while
        node("c", known=5),  # a spare
    ],
)
def test_who_is_in_no_round_waits_for_who_may_still_be_in_it(first: Member):
    leader = of(first, most=1)
    leader.wait(BACK_S - 0.1)
    assert leader.assigned == {}
    leader.wait(0.1)
    assert leader.number == 6


def test_who_has_left_a_round_waits_for_nobody_else():
    leader = of(leaver("b"))
    assert leader.assigned == {}
    leader.hear(leaver("a"))
    assert leader.number == 6
    assert of(leaver("b", server=0)).number == 6, "it served, and nobody can work without it"


def test_newer_round_of_which_somebody_has_heard_comes_first():
    leader = of(keeper("a"), keeper("b"), node("c", known=6), most=3)
    assert leader.published == []
    leader.wait(BACK_S)
    assert leader.state == (6, "over")
    leader.join("a", "b")
    assert leader.number == 7


def test_last_call_waits_for_them_too():
    leader = of(node("c"), most=3, last_call=5)
    leader.hear(node("d", known=5))
    leader.wait(6)
    assert not leader.assigned
    assert (leader.machine.deadline() or 0) > leader.now, "else the leader would turn and turn"
    leader.wait(BACK_S - 6)
    assert leader.number == 6


def test_newcomer_who_has_heard_of_nothing_makes_way():
    leader = of(node("c"))
    assert leader.number == 1
    leader.hear(keeper("a"), keeper("b"))
    assert leader.state == (5, "complete")


def test_keeper_of_another_place_is_not_believed():
    leader = of(keeper("a"), node("b", after=4, keeps=PLACES["a"]))
    leader.wait(BACK_S)
    assert leader.state == (5, "over")


def test_node_that_is_ahead_of_the_service_gets_in():
    """It was too late to keep its round, and newcomers have begun again from 1."""
    leader = of(node("c"))
    leader.complete()
    leader.hear(node("a", after=5, known=5))
    assert (leader.state, leader.round.cause) == ((1, "over"), "came")
    leader.join("c")
    assert leader.number == 6


def test_no_number_is_begun_twice():
    """A round was being formed when the service lost its memory."""
    seat = seat_of(structs.replace(PLACES["a"], round=1, rank=0, world=1), complete=True)
    assert of(node("a", store=(2, "10.0.0.1", 9), known=1, after=1, seats=(seat,)), most=1).number == 3
