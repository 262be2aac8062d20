"""Several endpoints: a leader forms a round only of more than half of the nodes of the last one, here or elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from kits.unit.membership_steps import Leader, node

from rdzv_plugins.elastic.keys import Member, Seat, decode, encode

BACK_S = 11.0


def leader_of(*names: str) -> Leader:
    """Of a complete round."""
    leader = Leader(1, 5, last_call=0, back=BACK_S, majority=True)
    leader.hear(*(node(name) for name in names))
    leader.complete()
    assert leader.state == (1, "complete")
    return leader


def from_elsewhere(name: str, rank: int, world: int, *reached: Seat, round_: int = 5, **fields: Any) -> Member:
    return node(name, after=round_, known=round_, seats=(Seat(round_, rank, world, "x", True), *reached), **fields)


def test_too_few_form_no_round_until_another_is_back():
    leader = leader_of("a", "b", "c")
    leader.lose("b", "c")
    leader.join("a")
    assert leader.state == (1, "over")
    leader.wait(1000)
    assert leader.number == 1, "one node would be enough, but two may go on elsewhere"
    assert "more than half of the nodes of round 1 have to be here" in leader.machine.facts()
    assert "1 of 3 are" in leader.machine.facts()
    assert leader.machine.deadline() is None, "nothing is polled"
    leader.hear(node("d"))
    assert leader.number == 1, "a newcomer has no voice"
    leader.hear(node("b", after=1))
    leader.complete()
    assert (leader.state, len(leader.ranks())) == ((2, "complete"), 3)


@pytest.mark.parametrize("how", ["proved", "said"])
def test_who_is_known_to_take_part_nowhere_is_no_obstacle(how: str):
    leader = leader_of("a", "b", "c")
    if how == "said":
        leader.say("b", leaving="lost")
        leader.say("c", leaving="lost")
    else:
        leader.lose("b", "c")
        leader.machine.proved("b")
        leader.machine.proved("c")
        leader.machine.proved("a stranger")
    leader.join("a")
    leader.complete()
    assert (leader.state, leader.ranks()) == ((2, "complete"), {"a": 0})


def test_of_two_halves_the_one_with_the_highest_rank_goes_on():
    for stays, goes in (("a", "b"), ("b", "a")):
        leader = leader_of("a", "b")
        leader.lose(goes)
        leader.join(stays)
        assert leader.number == (2 if leader_of("a", "b").ranks()[stays] == 1 else 1)


def test_nodes_from_elsewhere_wait_for_each_other_keep_their_ranks_and_count_on():
    leader = Leader(1, 5, last_call=30, back=BACK_S, majority=True)
    leader.hear(from_elsewhere("c", 2, 3, gone=0))
    assert leader.assigned == {}
    leader.hear(from_elsewhere("b", 1, 3, gone=0))
    leader.complete()
    assert (leader.state, leader.ranks()) == ((6, "complete"), {"b": 1, "c": 0}), "the process of rank 0 is gone"

    leader = Leader(1, 5, last_call=30, back=BACK_S, majority=True)
    leader.hear(from_elsewhere("c", 2, 3), from_elsewhere("b", 1, 3))
    assert leader.assigned == {}, "rank 0 may be on its way"
    leader.wait(BACK_S)
    leader.complete()
    assert leader.state == (6, "complete")


def test_round_that_may_have_been_complete_binds():
    undecided = Seat(7, 1, 5, "y")
    leader = Leader(1, 5, last_call=0, back=BACK_S, majority=True)
    leader.hear(from_elsewhere("a", 0, 3, undecided), from_elsewhere("b", 1, 3))
    leader.wait(BACK_S)
    assert leader.assigned == {}
    assert "of round 7 have to be here" in leader.machine.facts()
    leader.hear(*(node(name, seats=(Seat(7, rank, 5, "y"),)) for rank, name in ((2, "d"), (3, "e"))))
    leader.complete()
    assert leader.state == (8, "complete")


def test_seats_are_told_and_strange_ones_refused():
    member = from_elsewhere("a", 0, 3, Seat(7, 1, 5, "y"))
    assert decode(Member, encode(member)) == member
    for text in (b'{"seats": 1}', b'{"seats": [1]}', b'{"seats": [{"round": -1}]}', b'{"gone": "x"}'):
        with pytest.raises(ValueError, match="not a"):
            decode(Member, text)
