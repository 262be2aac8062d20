"""The leader's state machine, step by step: who is in which round, and when."""

from __future__ import annotations

import itertools
import sys

import pytest
from kits.unit.membership_steps import Leader, node, working

from rdzv_plugins.elastic.keys import Assignment


def test_first_round_begins_at_the_maximum():
    leader = Leader(2, 3)
    assert not leader.hear(node("a"), node("b"))
    out = leader.hear(node("c"))
    assert list(out.assignments) == ["a"]
    assert out.assignments["a"].master_addr == ""
    out = leader.serve()
    assert {(n, a.rank, a.world, a.master_addr, a.master_port) for n, a in out.assignments.items()} == {
        ("a", 0, 3, "10.0.0.1", 4000),
        ("b", 1, 3, "10.0.0.1", 4000),
        ("c", 2, 3, "10.0.0.1", 4000),
    }
    leader.reach()
    assert leader.state == (1, "complete")
    assert leader.round.world == 3


def test_first_round_begins_last_call_after_the_minimum():
    leader = Leader(2, 3, last_call=30)
    leader.hear(node("a"))
    assert leader.machine.deadline() is None
    leader.wait(50)
    leader.hear(node("b"))
    assert leader.machine.deadline() == leader.now + 30
    assert not leader.wait(29)
    assert list(leader.wait(1).assignments) == ["a"]


def test_last_call_begins_again_when_the_minimum_is_lost():
    leader = Leader(2, 3, last_call=30)
    leader.hear(node("a"), node("b"))
    leader.wait(29)
    leader.lose("b")
    assert leader.machine.deadline() is None
    leader.hear(node("c"))
    assert not leader.wait(29)
    assert leader.wait(1).assignments


def test_later_round_begins_as_soon_as_all_who_live_have_joined():
    leader = working(1, 4, node("a"), node("b"), node("c"))
    leader.lose("c")
    assert leader.state == (1, "over")
    leader.join("a")
    assert leader.number == 1
    leader.join("b")
    assert leader.number == 2
    leader.complete()
    assert leader.ranks() == {"a": 0, "b": 1}


def test_later_round_waits_for_the_minimum():
    leader = working(2, 2, node("a"), node("b"))
    leader.lose("b")
    leader.join("a")
    assert leader.number == 1
    assert "missing: host-b (was node 1)" in leader.machine.facts()
    leader.hear(node("c"))
    leader.complete()
    assert leader.ranks() == {"a": 0, "c": 1}


def test_surplus_node_is_a_spare_until_there_is_room():
    leader = working(1, 2, node("a"), node("b"))
    assert not leader.hear(node("c"))
    leader.lose("a")
    leader.join("b")
    leader.complete()
    assert leader.ranks() == {"c": 0, "b": 1}


def test_spare_does_not_push_out_who_was_there():
    leader = working(1, 2, node("a"), node("b"))
    leader.hear(node("c"))
    leader.lose("a")
    leader.hear(node("a", after=1))  # its agent has a new session
    leader.join("b")
    leader.complete()
    assert leader.ranks() == {"a": 0, "b": 1}


def test_newcomer_ends_a_round_that_has_room():
    leader = working(1, 3, node("a"), node("b"))
    assert not leader.hear(node("c"))  # it has still to dial the store of round 1
    assert leader.say("c", reached=1).round.cause == "came"
    assert leader.round.reason == "host-c (pid 7) has come"
    leader.join("a", "b")
    leader.complete()
    assert leader.round.world == 3


def test_who_came_while_a_round_was_formed_enters_the_next():
    leader = Leader(1, 3, last_call=0)
    leader.hear(node("a"))
    leader.serve()
    leader.hear(node("b"))
    leader.reach()
    assert leader.state == (1, "complete")
    leader.say("b", reached=1)
    assert leader.state == (1, "over")


@pytest.mark.parametrize("step", ["serve", "reach"])
@pytest.mark.parametrize("lost", ["a", "b"])
def test_node_that_is_lost_while_a_round_is_formed(step: str, lost: str):
    leader = Leader(1, 2, last_call=0)
    leader.hear(node("a"), node("b"))
    if step == "reach":
        leader.serve()
        leader.say(lost, reached=1)
    stays = {"a": "b", "b": "a"}[lost]
    leader.lose(lost)
    assert leader.round.number == 0
    assert leader.number == 2
    assert not leader.say(stays, reached=1)  # that was for the round that was given up
    leader.complete()
    assert leader.ranks() == {stays: 0}
    assert leader.state == (2, "complete")


def test_nobody_is_told_of_a_round_that_is_given_up_at_once():
    leader = Leader(1, 3, last_call=0)
    leader.hear(node("a"), node("b"), node("c"))
    leader.machine.changed(node("a", store=(1, "10.0.0.1", 4000)), leader.now)
    out = leader.lose("c")
    assert {name: a.round for name, a in out.assignments.items()} == {"a": 2}


def test_lost_node_ends_the_round_with_its_name():
    leader = working(1, 2, node("a"), node("b"))
    out = leader.lose("b")
    assert (out.round.state, out.round.cause) == ("over", "lost")
    assert out.round.reason == "host-b (pid 7) was lost"


@pytest.mark.parametrize(("how", "said"), [("lost", "was lost: preempted"), ("failed", "has failed: preempted")])
def test_node_that_leaves_is_quoted(how, said):
    leader = working(1, 2, node("a"), node("b"))
    leader.say("b", leaving=how, reason="preempted")
    assert (leader.round.state, leader.round.cause) == ("over", "lost")
    assert leader.round.reason == f"host-b (pid 7) {said}"
    assert not leader.lose("b").round


def test_node_that_asks_for_another_round():
    leader = working(1, 2, node("a"), node("b"))
    leader.join("b")
    assert (leader.round.state, leader.round.cause) == ("over", "asked")
    leader.join("a")
    leader.complete()
    assert leader.ranks() == {"a": 0, "b": 1}


def test_done_lets_the_others_finish():
    leader = working(1, 2, node("a"), node("b"))
    leader.hear(node("spare"))
    leader.say("a", done=1)
    leader.say("a", leaving="done")
    leader.lose("a")
    assert not leader.hear(node("late")).round
    assert leader.state == (1, "complete")


def test_node_that_is_done_and_lost_is_done():
    leader = working(1, 2, node("a"), node("b"))
    leader.say("a", done=1)
    assert not leader.lose("a").round


def test_old_words_change_nothing():
    """I7."""
    leader = working(1, 2, node("a"), node("b"))
    leader.join("a", "b")
    leader.complete()
    old = [{"after": 0}, {"reached": 1}, {"store": (1, "x", 1)}, {"done": 1}, {"reached": 1, "unreachable": "no route"}]
    for words in old:
        assert not leader.say("a", **words)
    assert leader.state == (2, "complete")


def test_store_that_cannot_be_reached_fails_the_round_with_who_and_whom():
    leader = Leader(2, 2)
    leader.hear(node("a"), node("b"))
    leader.serve()
    leader.say("b", reached=1, unreachable="connection refused")
    leader.say("a", reached=1)
    assert leader.state == (1, "failed")
    assert leader.round.reason == (
        "host-b (pid 7) cannot reach the workers' store of host-a (node 0) at 10.0.0.1 port 4000: connection refused"
    )
    assert leader.machine.settled
    assert not leader.hear(node("c"))


def test_same_given_rank_is_refused_after_a_while():
    leader = Leader(2, 2, duplicate=11)
    leader.hear(node("a", 0), node("b", 0))
    assert leader.machine.deadline() == leader.now + 11
    assert not leader.wait(10.9)
    out = leader.wait(0.1)
    assert out.assignments["b"].refused == "node rank 0 is that of host-a (node rank 0, pid 7)"
    assert list(out.assignments) == ["b"]
    assert leader.machine.deadline() is None


def test_refused_node_counts_for_nothing():
    leader = Leader(1, 3, duplicate=11, last_call=60)
    leader.hear(node("a", 0), node("b", 0))
    leader.wait(11)
    leader.lose("a")
    assert not leader.wait(100)
    leader.lose("b")
    leader.hear(node("c", 0))
    assert list(leader.wait(60).assignments) == ["c"]


def test_each_doubled_rank_has_its_own_time():
    leader = Leader(4, 4, duplicate=11)
    leader.hear(node("a", 0), node("b", 0))
    leader.wait(5)
    leader.hear(node("c", 1), node("d", 1))
    leader.lose("a")  # it was lost, and "b" is the same agent, started again
    assert not leader.wait(6)
    assert list(leader.wait(5).assignments) == ["d"]


def test_refusal_and_beginning_in_one_tick():
    leader = Leader(1, 3, duplicate=11, last_call=11)
    leader.hear(node("a", 0), node("b", 0))
    out = leader.wait(11)
    assert out.assignments["b"].refused
    assert out.assignments["a"].round == 1


def test_agent_that_is_started_again_takes_over_its_rank():
    leader = working(2, 2, node("a", 0), node("b", 1))
    leader.hear(node("c", 1, machine="b"))  # "b" is gone, and not yet known to be
    assert leader.state == (1, "complete")
    leader.lose("b")
    leader.join("a")
    leader.complete()
    assert leader.ranks() == {"a": 0, "c": 1}


@pytest.mark.parametrize(
    ("addresses", "machines", "published"),
    [
        (("127.0.0.1", "127.0.0.1"), "mm", ""),
        (("127.0.0.1", "127.0.0.1"), "mn", "10.0.0.9"),  # a service of several members, one on each machine
        (("127.0.0.1", "10.0.0.2"), "mn", "10.0.0.9"),
        (("127.0.0.1", "10.0.0.2"), "mm", "10.0.0.9"),
        (("10.0.0.1", "127.0.0.1"), "mn", ""),
    ],
)
def test_store_is_published_elsewhere_when_others_cannot_dial_loopback(addresses, machines, published):
    leader = Leader(2, 2)
    nodes = zip("ab", addresses, machines, strict=True)
    out = leader.hear(*(node(name, address=a, machine=m, public="10.0.0.9") for name, a, m in nodes))
    assert out.assignments["a"].publish == published


def test_lost_nodes_are_forgotten_once_a_round_is_complete_without_them():
    leader = working(1, 3, node("a"), node("b"))
    assert leader.lose("b").forget == ()
    leader.join("a")
    assert "b" in leader.assigned
    leader.complete()
    assert leader.assigned.keys() == {"a"}


def test_working_and_settled():
    leader = Leader(2, 2)
    leader.hear(node("a"), node("b"))
    assert not leader.machine.settled
    assert leader.machine.working() == []
    leader.complete()
    assert leader.machine.settled
    assert [member.node_id for member in leader.machine.working()] == ["a", "b"]


def test_refused_assignment_is_no_place():
    leader = Leader(1, 1, assigned={"x": Assignment(3, refused="no")})
    leader.hear(node("a"))
    assert leader.number == 4


def test_news_of_a_node_costs_the_same_for_every_number_of_nodes():
    def calls_of_a_node(nodes: int) -> float:
        leader, count = Leader(nodes - 1, nodes), itertools.count()
        sys.setprofile(lambda frame, event, argument: next(count))
        try:
            for number in range(nodes):
                leader.hear(node(f"n{number}"))
            leader.serve()
            for number in range(nodes):
                leader.say(f"n{number}", reached=1)
            leader.lose(f"n{nodes - 1}")
            for number in range(nodes - 1):
                leader.say(f"n{number}", after=1)
        finally:
            sys.setprofile(None)
        assert leader.state == (1, "over")
        return next(count) / nodes

    assert calls_of_a_node(400) < 1.3 * calls_of_a_node(100)


def test_newcomer_waits_until_a_round_can_have_a_unit_more():
    leader = working(2, 4, node("a"), node("b"), node_unit=2)
    leader.come(node("c"))
    assert leader.state == (1, "complete")
    assert "multiple of 2 nodes (node_unit)" in leader.assigned["c"].spare
    assert not leader.assigned["c"].is_place
    assert leader.hear(node("d")).round is None
    assert leader.say("d", reached=1).round.cause == "came"
    leader.join("a", "b")
    leader.complete()
    assert leader.round.world == 4


def test_domain_without_enough_nodes_is_left_out_and_told_why():
    members = [node(name, domain=name[0]) for name in ("r1", "s1", "r2", "s2")]
    leader = working(2, 4, *members, min_per_domain=2)
    leader.lose("s1")
    leader.join("r1", "r2", "s2")
    leader.complete()
    assert leader.ranks() == {"r1": 0, "r2": 1}
    assert leader.assigned["s2"].spare == "domain s has fewer than 2 nodes here (min_per_domain)"
    assert not leader.wait(1000), "it is told once"
    leader.say("s2", reached=2)
    leader.come(node("s3", domain="s"))
    assert leader.round.cause == "came"
    leader.join("r1", "r2")
    leader.complete()
    assert leader.ranks() == {"r1": 0, "r2": 1, "s2": 2, "s3": 3}


def test_later_round_waits_for_enough_of_a_domain():
    leader = working(4, 4, *(node(name, domain=name[0]) for name in ("r1", "s1", "r2", "s2")), min_per_domain=2)
    leader.lose("s1")
    leader.join("r1", "r2", "s2")
    assert leader.number == 1
    assert leader.machine.facts() == (
        "3 of 4 nodes have joined (host-r1 (pid 7), host-r2 (pid 7), host-s2 (pid 7)); missing: host-s1 (was node 2) "
        "of domain s; here: 2 of domain r, 1 of domain s; left out until 2 of its nodes are here (min_per_domain): "
        "domain s"
    )
    leader.hear(node("s3", domain="s"))
    leader.complete()
    assert leader.ranks() == {"r1": 0, "r2": 1, "s3": 2, "s2": 3}


def test_enough_nodes_are_not_enough_if_no_domain_has_its_least_number():
    leader = Leader(2, 4, last_call=0, min_per_domain=2)
    assert not leader.hear(node("r1", domain="r"), node("s1", domain="s"))
    leader.hear(node("r2", domain="r"))
    leader.complete()
    assert leader.ranks() == {"r1": 0, "r2": 1}
