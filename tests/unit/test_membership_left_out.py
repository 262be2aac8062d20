"""A job that can go on goes on: whoever cannot take part is left out with a reason, and let in again later."""

from __future__ import annotations

import pytest
from kits.unit.membership_steps import Leader, node, working

from rdzv_plugins.elastic.keys import Assignment


def notices(out) -> str:
    return "; ".join(out.notices)


def test_newcomer_that_cannot_dial_the_store_ends_no_round():
    leader = working(2, 4, node("a"), node("b"), node("c"))
    leader.hear(node("d"))
    out = leader.say("d", reached=1, unreachable="connection refused")
    assert leader.state == (1, "complete")
    assert notices(out) == (
        "host-d (pid 7) is left out: it cannot reach the workers' store at 10.0.0.1 port 4000: connection refused"
    )
    assert leader.say("d", reached=1, unreachable="").round.cause == "came"


def test_round_is_formed_again_without_who_cannot_dial_its_store():
    leader = Leader(2, 3)
    leader.hear(node("a"), node("b"), node("c"))
    leader.serve()
    leader.say("a", reached=1)
    leader.say("b", reached=1)
    out = leader.say("c", reached=1, unreachable="connection refused")
    assert out.assignments["c"].left_out == (
        "it cannot reach the workers' store of host-a (node 0) at 10.0.0.1 port 4000: connection refused"
    )
    assert "host-c (pid 7) is left out for now: it cannot reach" in notices(out)
    leader.complete()
    assert leader.ranks() == {"a": 0, "b": 1}
    assert leader.state == (2, "complete")


def test_node_whose_store_most_others_cannot_dial_is_the_one_to_be_left_out():
    leader = Leader(2, 3)
    leader.hear(node("a"), node("b"), node("c"))
    leader.serve()
    leader.say("a", reached=1)
    leader.say("b", reached=1, unreachable="no route to host")
    out = leader.say("c", reached=1, unreachable="no route to host")
    assert out.assignments["a"].left_out.startswith("2 of 2 other nodes cannot reach the workers' store of host-a")
    assert leader.ranks() == {"b": 0}  # it is asked to serve
    leader.complete()
    assert leader.ranks() == {"b": 0, "c": 1}


def test_job_that_has_worked_is_not_ended_by_a_store_that_cannot_be_dialled():
    """Too few are left without it: the round is tried again, with pauses."""
    leader = working(2, 2, node("a"), node("b"))
    leader.join("a", "b")
    for number in (2, 3, 4):
        assert leader.number == number
        leader.serve()
        leader.say("a", reached=number)
        leader.say("b", reached=number, unreachable="no answer")
        assert leader.state == (1, "over")
        while leader.number == number:
            at = leader.machine.deadline()
            assert at is not None
            leader.wait(at - leader.now)
    leader.complete()
    assert leader.ranks() == {"a": 0, "b": 1}


def test_others_wait_for_a_node_that_does_not_join_again_only_so_long():
    leader = working(2, 4, node("a"), node("b"), node("c"))
    leader.join("a", "b")
    assert leader.number == 1
    assert leader.machine.deadline() == leader.now + 60
    assert not leader.wait(59)
    out = leader.wait(1)
    assert out.assignments["c"].left_out == "it has not joined again after round 1 for 60 s"
    leader.complete()
    assert leader.ranks() == {"a": 0, "b": 1}
    # it lives, and says nothing: nobody is disturbed, and the next round does not wait for it
    leader.lose("b")
    assert not leader.wait(1000)
    leader.hear(node("e"))
    leader.join("a")
    leader.complete()
    assert leader.ranks() == {"a": 0, "e": 1}
    # it can again
    leader.join("c")
    leader.wait(1)
    assert leader.say("c", reached=leader.round.number).round.cause == "came"


def test_others_wait_as_long_as_it_takes_where_they_are_too_few():
    leader = working(2, 2, node("a"), node("b"))
    leader.join("a")
    assert leader.machine.deadline() is None
    assert not leader.wait(1000)
    leader.join("b")
    leader.complete()
    assert leader.round.world == 2


@pytest.mark.parametrize("step", ["serve", "reach"])
def test_node_that_does_not_act_on_its_place_is_left_out(step: str):
    leader = Leader(1, 2)
    leader.hear(node("a"), node("b"))
    if step == "reach":
        leader.serve()
        leader.say("b", reached=1)
    out = leader.wait(60)
    assert out.assignments["a"].left_out == "it does not answer for 60 s"
    leader.complete()
    assert leader.ranks() == {"b": 0}
    leader.say("a", reached=0)
    leader.wait(2)
    assert leader.say("a", reached=2).round.cause == "came"


def test_node_that_comes_back_at_once_and_is_lost_again_has_to_wait_ever_longer():
    leader = working(1, 2, node("a"))
    overs, arrivals = 0, 0
    end = leader.now + 600
    while leader.now < end:
        arrivals += 1
        leader.come(node(f"b{arrivals}", machine="b", host="host-b"))
        if leader.round.state == "over":
            leader.join("a")
            leader.complete()
        leader.wait(5)
        leader.lose(f"b{arrivals}")
        if leader.round.state == "over":
            overs += 1
            leader.join("a")
            leader.complete()
    assert arrivals == 120
    assert 6 <= overs <= 12


def test_left_out_node_is_let_in_when_its_time_has_come():
    leader = working(1, 2, node("a"))
    for number in range(3):
        leader.come(node(f"b{number}", machine="b", host="host-b"))
        if number < 2:
            leader.join("a")
            leader.complete()
            leader.lose(f"b{number}")
            leader.join("a")
            leader.complete()
    assert leader.state[1] == "complete"
    assert leader.machine.deadline() == leader.now + 2
    leader.wait(2)
    assert leader.round.cause == "came"


def test_node_that_has_stayed_for_a_while_is_as_good_as_new():
    leader = working(1, 2, node("a"))
    for number in range(10):
        leader.come(node(f"b{number}", machine="b", host="host-b"))
        assert leader.round.cause == "came"
        leader.join("a")
        leader.complete()
        leader.wait(30)
        leader.lose(f"b{number}")
        leader.join("a")
        leader.complete()


@pytest.mark.parametrize("rank", [-5, 2, 10**9])
def test_nonsensical_node_rank_is_refused_and_harms_nobody(rank: int):
    leader = Leader(1, 2, last_call=5)
    leader.hear(node("a"))
    out = leader.hear(node("b", rank))
    assert out.assignments["b"].refused == f"node rank {rank} is out of range for 2 nodes"
    assert "host-b" in notices(out)
    leader.wait(5)
    leader.complete()
    assert leader.ranks() == {"a": 0}


def test_next_leader_does_not_wait_for_a_late_node_either():
    leader = working(1, 3, node("a"), node("b"), node("c"))
    leader.join("a", "b")
    leader.wait(60)
    other = leader.successor(without=("b",))
    other.complete()
    assert other.ranks() == {"a": 0}
    assert other.assigned["c"] == Assignment(1, left_out="it has not joined again after round 1 for 60 s", late_for=1)
    other.join("c")
    other.wait(0)
    assert other.say("c", reached=other.round.number).round.cause == "came"
