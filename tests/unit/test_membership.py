"""The leader's state machine, step by step: who is in which round, and when; another that takes over; signs of life."""

from __future__ import annotations

import itertools
import sys

import pytest
from kits.unit.membership_steps import KEPT, Leader, keeping, node, story, working

from rdzv_plugins.elastic.coordinator.member_monitor import LivenessRound
from rdzv_plugins.elastic.coordinator.state_machine import KeyGone
from rdzv_plugins.elastic.keys import Assignment, Heartbeat, Member

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

STORIES = [
    # a first round begins at the maximum, or a last call after the minimum, which begins again when that is lost
    ("2:3", "come a b c", "0 none, 1 begun: a of 3", {"last_call": 30}),
    # a surplus node is a spare until there is room, and does not push out who was there and comes back
    ("1:2", "come a b, complete, come c, dial c", "1 complete: a b", {}),
    # a newcomer ends a round that has room, once it has dialled its store; or enters the next
    ("1:3", "come a b, complete, come c", "1 complete: a b", {}),
    # a node is lost while a round is formed: what is said of that one counts for nothing
    ("1:2", "come a b, lose a, reached b 1", "0 none, 2 begun: b of 1", {}),
    ("1:2", "come a b, lose b, reached a 1, complete", "2 complete: a", {}),
    # who is done lets the others finish, and is done if it is lost then
    ("1:2", "come a b, complete, come c, done a, leave a done, lose a, come d, dial d", "1 complete: a b", {}),
    ("1:3", "come a b, complete, done a, come c, dial c", "1 complete: a b", {}),
    ("1:2", "come a b, complete, done a, lose a", "1 complete: a b", {}),
    # who cannot dial a store ends no round, and is in none, but where it is needed
    ("2:4", "come a b c, complete, come d, wall d, lose c, join a b, complete", "2 complete: a b", {}),
    ("2:3", "come a b c, serve, reached a 1, reached b 1, wall c, complete", "2 complete: a b, c out", {}),
    ("2:3", "come a b c, serve, reached a 1, wall b, wall c, complete", "2 complete: b c, a out", {}),  # a is the one
    # a job that has worked is not ended by a store that cannot be dialled: it is tried again, with pauses
    ("2:2", "come a b, complete, join a b, serve, reached a 2, wall b", "1 over asked, 2 begun: a of 2, b out", {}),
    (
        "2:2",
        "come a b, complete, join a b, serve, reached a 2, wall b, wait, serve",
        "1 over asked, 3 begun: a b of 2",
        {},
    ),
    # who does not join again is waited for, but only so long, unless they are too few without it; and let in later
    ("2:4", "come a b c, complete, join a b, wait 60, complete, lose b, wait 1000", "2 over lost, c out", {}),
    (
        "2:4",
        "come a b c, complete, join a b, wait 60, complete, lose b, come e, join a, complete",
        "3 complete: a e, c out",
        {},
    ),
    ("2:2", "come a b, complete, join a, wait 1000", "1 over asked", {}),
    ("1:3", "come a b c, complete, join a b, wait 60, succeed without b, complete", "3 complete: a, c out", {}),
    (
        "1:3",
        "come a b c, complete, join a b, wait 60, succeed without b, complete, join c, dial c",
        "3 over came, c out",
        {},
    ),
    # and who does not act on its place
    ("1:2", "come a b, wait 60, complete", "2 complete: b, a out", {}),
    ("1:2", "come a b, wait 60, complete, reached a 0, wait 2, dial a", "2 over came, a out", {}),
    # a rank that is given twice: the second is refused after a while, and counts for nothing
    ("1:3", "come a@0 b@0, wait 11, lose a, wait 100", "0 none, b refused", {"duplicate": 11, "last_call": 60}),
    (
        "1:3",
        "come a@0 b@0, wait 11, lose a, lose b, come c@0, wait",
        "0 none, 1 begun: c of 1",
        {"duplicate": 11, "last_call": 60},
    ),
    ("4:4", "come a@0 b@0, wait 5, come c@1 d@1, lose a, wait 6, wait 5", "0 none, d refused", {"duplicate": 11}),
    # and one that is nonsense, at once
    *(
        ("1:2", f"come a, come b@{rank}, wait, complete", "1 complete: a, b refused", {"last_call": 5})
        for rank in (-5, 2, 10**9)
    ),
    # rounds have a multiple of a number of nodes, and of each domain enough
    ("2:4", "come a b, complete, come c, dial c", "1 complete: a b", {"node_unit": 2}),
    ("2:4", "come a b, complete, come c, dial c, come d, dial d", "1 over came", {"node_unit": 2}),
    ("2:4", "come r1 s1 r2 s2, complete, lose s1, join r1 r2 s2, complete", "2 complete: r1 r2", {"min_per_domain": 2}),
    (
        "2:4",
        "come r1 s1 r2 s2, complete, lose s1, join r1 r2 s2, complete, come s3, dial s3, dial s2, join r1 r2, complete",
        "3 complete: r1 r2 s2 s3",
        {"min_per_domain": 2},
    ),
    # a leader that takes over knows nothing but the keys, and goes on: a round that was being formed is given up
    ("1:2", "come a b, complete, succeed", "1 complete: a b", {}),
    ("1:2", "come a b, complete, succeed, lose b", "1 over lost", {}),
    # who went with the leader is lost, unless it or another was done
    ("1:3", "come a b c, complete, succeed finishing without a, come d, dial d", "1 complete: a b c", {}),
    ("1:3", "come a b c, complete, done a, succeed gone a", "1 complete: a b c", {}),
    ("1:1", "come a, complete, come b, succeed without a, complete", "2 complete: b", {}),
    # the service has lost its memory: the round goes on when all are back, and is over when nobody can be elsewhere
    ("1:2", "keeps b, keeps a", "5 complete: a b", {}),
    ("1:3", "keeps b, left a", "5 over lost", {}),
    ("1:3", "keeps b, says b server_rank=0, serves d", "5 over lost", {}),
    # nothing begins while somebody may be
    *(("1:3", f"keeps b, come c, {step}, wait 10.9", "0 none", {}) for step in ELSEWHERE),
    *(("1:3", f"keeps b, come c, {step}, wait, join, complete", told, {}) for step, told in ELSEWHERE.items()),
    # who is in no round waits for who may still be in it: its workers have failed, or it is a spare; for nobody else
    ("1:1", "left b, wait 10.9", "0 none", {}),
    ("1:2", "left b, left a", "0 none, 6 begun: b of 2", {}),
    # a last call waits for them, too
    ("1:3", "come c, knows d 5, wait 6", "0 none", {"last_call": 5}),
    ("1:3", "come c, knows d 5, wait 6, wait", "0 none, 6 begun: c of 2", {"last_call": 5}),
    # a newcomer who has heard of nothing makes way
    ("1:2", "come c, keeps a, keeps b", "5 complete: a b", {}),
    # a newer round of which somebody has heard comes first
    ("1:3", "knows c 6, keeps a, keeps b, wait, join a b", "6 over lost, 7 begun: c of 3", {}),
]


@pytest.mark.parametrize(("sizes", "steps", "told", "rules"), STORIES)
def test_what_a_leader_has_come_to(sizes: str, steps: str, told: str, rules: dict[str, int]):
    assert story(sizes, steps, **rules) == told


def test_later_round_waits_for_the_minimum():
    leader = working(2, 2, node("a"), node("b"))
    leader.lose("b")
    leader.join("a")
    assert leader.number == 1
    assert "missing: host-b (was node 1)" in leader.machine.facts()
    leader.hear(node("c"))
    leader.complete()
    assert leader.ranks() == {"a": 0, "c": 1}


@pytest.mark.parametrize(
    ("how", "said"), [("", "was lost"), ("lost", "was lost: preempted"), ("failed", "has failed: preempted")]
)
def test_node_that_is_lost_or_leaves_is_named(how, said):
    leader = working(1, 2, node("a"), node("b"))
    if how:
        leader.say("b", leaving=how, reason="preempted")
    else:
        leader.lose("b")
    assert (leader.round.state, leader.round.cause) == ("over", "lost")
    assert leader.round.reason == f"host-b (pid 7) {said}"
    assert not leader.lose("b").round


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


def test_news_of_a_node_costs_the_same_for_every_number_of_nodes():
    def calls_of_a_node(nodes: int) -> float:
        leader, count = Leader(nodes - 1, nodes), itertools.count()
        sys.setprofile(lambda frame, event, argument: next(count))
        try:
            for number in range(nodes):
                leader.hear(node(f"n{number}"))
            leader.serve()
            for number in range(nodes):
                leader.say(f"n{number}", store_ready_round=1)
            leader.lose(f"n{nodes - 1}")
            for number in range(nodes - 1):
                leader.say(f"n{number}", last_round=1)
        finally:
            sys.setprofile(None)
        assert leader.state == (1, "over")
        return next(count) / nodes

    assert calls_of_a_node(400) < 1.3 * calls_of_a_node(100)


def test_who_is_kept_out_is_told_why():
    leader = working(2, 4, node("a"), node("b"), node("c"))
    leader.hear(node("d"))
    (notice,) = leader.say("d", store_ready_round=1, unreachable="connection refused").notices
    assert "host-d" in notice
    assert "10.0.0.1 port 4000: connection refused" in notice
    leader.join("a", "b")
    assert "round 1 for 60 s" in leader.wait(60).assignments["c"].left_out
    assert leader.assigned["c"].late_for == 1, "the next leader knows it, too"
    leader = Leader(1, 2)
    leader.hear(node("a"), node("b"))
    assert "60 s" in leader.wait(60).assignments["a"].left_out
    leader = Leader(1, 2, last_call=5)
    assert "node rank 7" in leader.hear(node("b", 7)).assignments["b"].refused
    leader = working(1, 2, node("a"))
    leader.hear(node("b", 7))
    leader.join("a")
    leader.complete()
    assert leader.state == (2, "complete"), "nobody waits for who was refused"


def ends(leader: Leader) -> bool:
    """Whether the round of node a is over, which is formed anew then."""
    over = leader.round.state == "over"
    if over:
        leader.join("a")
        leader.complete()
    return over


@pytest.mark.parametrize(("stays", "times", "least", "most"), [(5, 120, 6, 12), (30, 10, 10, 10)])
def test_node_that_comes_back_at_once_and_is_lost_again_has_to_wait_ever_longer(stays, times, least, most):
    """An agent of machine b, again and again. One that has stayed for a while is as good as new."""
    leader, overs, let_in = working(1, 2, node("a")), 0, []
    for number in range(times):
        leader.come(node(f"b{number}", machine="b", host="host-b"))
        let_in.append(ends(leader))
        if stays == 5 and number == 2:
            assert leader.machine.deadline() == leader.now + 2
        leader.wait(stays)
        leader.lose(f"b{number}")
        overs += ends(leader)
    assert let_in[:3] == [True, True, stays != 5]
    assert least <= overs <= most


def test_round_is_declared_as_it_was():
    leader = Leader(1, 2, last_call=0)
    leader.hear(keeping("b"))
    facts = leader.machine.facts()
    assert "1 of 2" in facts
    assert "host-b" in facts
    leader.hear(keeping("a"))
    (declared,) = leader.published
    assert (declared.number, declared.world) == (5, 2)
    assert (declared.master_addr, declared.master_port) == ("10.0.0.1", 9)
    assert leader.assigned == KEPT
    assert "host-a" in leader.successor(without=("a",)).round.reason, "who takes over knows the places"


@pytest.mark.parametrize("held", [{}, {"a": KEPT["a"]}], ids=["nothing", "half of its places"])
def test_leader_that_is_lost_before_the_round_is_declared(held: dict[str, Assignment]):
    leader = Leader(1, 2, None, held, last_call=0)
    leader.hear(keeping("a"), keeping("b"))
    assert leader.state == (5, "complete")


def test_node_that_is_ahead_of_the_service_gets_in():
    """It was too late to keep its round, and newcomers have begun again from 1."""
    leader = working(1, 2, node("c"))
    leader.hear(node("a", last_round=5, known_round=5))
    assert (leader.state, leader.round.cause) == ((1, "over"), "came")
    leader.join("c")
    assert leader.number == 6


@pytest.mark.parametrize(
    ("newest", "says", "written"),
    [
        # answered when the last has answered; that it is told again is no news
        (None, "a? a b b c c", "1 - - - 1! -"),
        # nobody waits for a lost node
        (None, "a? a c b- b-", "1 - - 1! -"),
        # an old answer does not count; a second request is a heartbeat of its own
        (None, "a? a c b0 b a?? a2 c2 b b2", "1 - - - 1! 2 - - - 2!"),
        # one that another leader has begun is begun again, unless it was answered
        (Heartbeat(1, 4), "a?1 c b", "1 - 1!"),
        (Heartbeat(1, 4, answered=True), "a?1 a??", "- 2"),
    ],
)
def test_what_comes_of_what_a_node_says(newest: Heartbeat | None, says: str, written: str) -> None:
    """``a?``: a asks for heartbeat 1 (``a??``: 2); ``a``: it has given 1 (``a2``: 2, ``a0``: none); ``a-``: is lost."""
    liveness, members, found = LivenessRound(newest), {name: node(name) for name in "abc"}, []
    for each in says.split():
        name, asks, number = each[0], each.count("?"), each.lstrip("abc?")
        if number == "-":
            members.pop(name, None)
            event: Member | KeyGone = KeyGone(name)
        else:
            given = int(number or (0 if asks == 1 else 1))
            event = members[name] = node(name, heartbeat_wanted=asks, heartbeat_answered=given)
        said = liveness.advance([event], lambda: list(members.values()), 4)
        found.append("-" if said is None else f"{said.number}{'!' * said.answered}")
    assert " ".join(found) == written


def test_heartbeat_is_answered_at_once_if_all_have_answered() -> None:
    alone = node("a", heartbeat_wanted=1, heartbeat_answered=1)
    assert LivenessRound(Heartbeat(1, 4)).advance([alone], lambda: [alone], 4) == Heartbeat(1, 4, answered=True)
