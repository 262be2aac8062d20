"""A leader that takes over knows nothing but the keys: at each step of a round it goes on from there."""

from __future__ import annotations

import pytest
from kits.unit.membership_steps import Leader, node, working


@pytest.mark.parametrize("step", ["join", "serve", "reach"])
def test_round_that_was_being_formed_is_given_up(step: str):
    leader = Leader(2, 2)
    leader.hear(node("a"))
    if step != "join":
        leader.hear(node("b"))
    if step == "reach":
        leader.serve()
        leader.say("b", reached=1)
    other = leader.successor()
    if step == "join":
        other.hear(node("b"))
        assert other.number == 1
    else:
        assert other.number == 2
        assert not other.say("a", reached=1)
    other.complete()
    assert other.ranks() == {"a": 0, "b": 1}


def test_complete_round_goes_on():
    leader = working(1, 2, node("a"), node("b"))
    other = leader.successor()
    assert other.state == (1, "complete")
    assert other.published == []
    assert [member.node_id for member in other.machine.working()] == ["a", "b"]
    assert other.lose("b").round.cause == "lost"


def test_who_went_with_the_leader_is_lost():
    other = working(1, 3, node("a"), node("b"), node("c")).successor(without=("a",))
    assert (other.round.state, other.round.cause) == ("over", "lost")
    assert "host-a (pid 7) was lost" in other.round.reason
    other.join("b", "c")
    other.complete()
    assert other.ranks() == {"c": 0, "b": 1}  # "b" keeps its rank


def test_who_went_with_the_leader_was_done_if_another_is():
    leader = working(1, 3, node("a"), node("b"), node("c"))
    other = leader.successor(without=("a",), finishing=True)
    assert other.state == (1, "complete")
    assert not other.hear(node("d"))


@pytest.mark.parametrize("done", [True, False])
def test_leader_whose_process_is_gone_was_done_if_it_has_said_so(done: bool):
    leader = working(1, 3, node("a"), node("b"), node("c"))
    if done:
        leader.say("a", done=1)
    other = leader.successor(gone="a")
    assert other.state == (1, "complete" if done else "over")


def test_spare_that_takes_over_from_the_only_node():
    leader = working(1, 1, node("a"))
    leader.hear(node("b"))
    other = leader.successor(without=("a",))
    other.complete()
    assert other.ranks() == {"b": 0}


def test_spare_ends_no_full_round_whatever_the_order_of_the_keys():
    leader = working(2, 2, node("a"), node("b"))
    leader.hear(node("c"))
    leader.members = {name: leader.members[name] for name in ("a", "c", "b")}
    assert leader.successor().published == []


def test_round_that_is_over_waits_for_all_who_live():
    leader = working(1, 3, node("a"), node("b"), node("c"))
    leader.lose("a")
    leader.join("b")
    other = leader.successor()
    assert other.number == 1
    other.join("c")
    assert other.number == 2
    other.complete()
    assert other.ranks() == {"c": 0, "b": 1}


def test_all_who_have_joined_are_in_the_next_round():
    leader = working(1, 3, node("a"), node("b"), node("c"))
    leader.lose("a")
    leader.join("b", "c")
    other = leader.successor()
    assert {each.world for each in other.assigned.values() if each.round == other.number} == {2}


def test_ranks_are_kept():
    leader = working(1, 3, node("a"), node("b"), node("c"))
    leader.join("c")
    other = leader.successor()
    other.join("b", "a")
    other.complete()
    assert other.ranks() == {"a": 0, "b": 1, "c": 2}


def test_number_is_never_given_twice():
    leader = Leader(1, 2, last_call=0)
    leader.hear(node("a"))
    leader.lose("a")
    leader.hear(node("b"))
    other = leader.successor(without=("b",))
    other.hear(node("a"))
    assert other.number == 3


def test_service_without_memory_numbers_on_from_the_round_that_its_members_are_still_in():
    """They have said something before they left that round: that one of their workers has failed."""
    leader = Leader(2, 2)
    leader.hear(node("a", reached=7, probe=1), node("b", reached=7, probe=1))
    assert leader.number == 8


def test_back_before_it_heard_that_its_round_was_complete():
    """It belongs to no round, though it has had a place: it waits like any other."""
    leader = working(1, 2, node("a"))
    other = leader.successor(without=("a",))
    other.hear(node("b"))
    other.hear(node("a", reached=1))  # it has not heard of the end of round 1, and never will
    other.serve()
    other.reach()
    other.say("a", reached=other.number)  # as any other that comes, it dials the store first
    assert (other.round.state, other.round.cause) == ("over", "came")
    other.join("b")
    other.complete()
    assert other.round.world == 2
