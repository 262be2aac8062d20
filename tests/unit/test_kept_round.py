"""The service has lost its memory: what a leader makes of the nodes of a round that come back, or do not."""

from __future__ import annotations

import pytest
from kits.unit.membership_steps import KEPT, Leader, keeper, node, story

from rdzv_plugins.elastic.keys import Assignment, Member

BACK_S = 11.0


def of(*members: Member, most: int = 2) -> Leader:
    """Who leads hears of these first."""
    leader = Leader(1, most, last_call=0)
    leader.hear(*members)
    return leader


ELSEWHERE = {
    "again b": "6 complete: c b",
    "lose b": "6 complete: c",
    "serves d": "6 complete: d b c",
    "keeps a world=3": "6 complete: a b c",
    "keeps a master_port=10": "6 complete: a b c",
    "keeps a rank=1": "6 complete: a b c",
    "keeps a rank=2": "6 complete: c b a",
}
"""After which a node of the round, which cannot be whole, may work elsewhere; and what comes of it in the end."""


@pytest.mark.parametrize(
    ("most", "steps", "told", "last_call"),
    [
        # the round goes on when all are back, and is lost later as ever
        (2, "keeps b, keeps a", "5 complete: a b", 0),
        # and at once when nobody of it can be elsewhere
        (3, "keeps b, left a", "5 over lost", 0),
        (3, "keeps b, says b server=0, serves d", "5 over lost", 0),
        # nothing begins while somebody may be
        *((3, f"keeps b, come c, {step}, wait 10.9", "0 none", 0) for step in ELSEWHERE),
        *((3, f"keeps b, come c, {step}, wait, join, complete", told, 0) for step, told in ELSEWHERE.items()),
        # who is in no round waits for who may still be in it: its workers have failed, or it is a spare
        (1, "left b, wait 10.9", "0 none", 0),
        # and for nobody else; nobody can work without who served
        (2, "left b, left a", "0 none, 6 begun: b of 2", 0),
        # a last call waits for them, too
        (3, "come c, knows d 5, wait 6", "0 none", 5),
        (3, "come c, knows d 5, wait 6, wait", "0 none, 6 begun: c of 2", 5),
        # a newcomer who has heard of nothing makes way
        (2, "come c, keeps a, keeps b", "5 complete: a b", 0),
    ],
)
def test_what_a_leader_has_come_to(most: int, steps: str, told: str, last_call: int):
    assert story(f"1:{most}", steps, last_call=last_call) == told


def test_round_is_declared_as_it_was():
    leader = of(keeper("b"))
    facts = leader.machine.facts()
    assert "1 of 2" in facts
    assert "host-b" in facts
    leader.hear(keeper("a"))
    (declared,) = leader.published
    assert (declared.number, declared.world) == (5, 2)
    assert (declared.master_addr, declared.master_port) == ("10.0.0.1", 9)
    assert leader.assigned == KEPT
    assert "host-a" in leader.successor(without=("a",)).round.reason, "who takes over knows the places"


@pytest.mark.parametrize("held", [{}, {"a": KEPT["a"]}], ids=["nothing", "half of its places"])
def test_leader_that_is_lost_before_the_round_is_declared(held: dict[str, Assignment]):
    leader = Leader(1, 2, None, held, last_call=0)
    leader.hear(keeper("a"), keeper("b"))
    assert leader.state == (5, "complete")


def test_newer_round_of_which_somebody_has_heard_comes_first():
    leader = of(keeper("a"), keeper("b"), node("c", known=6), most=3)
    assert leader.published == []
    leader.wait(BACK_S)
    assert leader.state == (6, "over")
    leader.join("a", "b")
    assert leader.number == 7


def test_node_that_is_ahead_of_the_service_gets_in():
    """It was too late to keep its round, and newcomers have begun again from 1."""
    leader = of(node("c"))
    leader.complete()
    leader.hear(node("a", after=5, known=5))
    assert (leader.state, leader.round.cause) == ((1, "over"), "came")
    leader.join("c")
    assert leader.number == 6
