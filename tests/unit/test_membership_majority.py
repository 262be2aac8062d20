"""Several endpoints: a leader forms a round only of more than half of the nodes of the last one, here or elsewhere."""

from __future__ import annotations

import pytest
from kits.unit.membership_steps import Leader, from_elsewhere, node, story
from msgspec.structs import replace

from rdzv_plugins.coordination import KeyValue
from rdzv_plugins.elastic.coordinator.coordinator import Coordinator as RealLeader
from rdzv_plugins.elastic.coordinator.placement import Rules
from rdzv_plugins.elastic.coordinator.state_machine import InitialListDone, RoundStateMachine
from rdzv_plugins.elastic.keys import INITIALIZED, PLACE_ID, Assignment, EpochVote, Member, Round, votes_reached
from rdzv_plugins.runtime import SYSTEM

BACK_S = 11.0


def of_majority(*members: Member, high: int = 5) -> Leader:
    leader = Leader(1, high, last_call=0, back=BACK_S, majority=True)
    leader.hear(*members)
    return leader


THREE = "come a b c, complete, "
FORMING = "elsewhere x 0 3, elsewhere y 1 3, wait 11, serve"
XYZ = (
    "elsewhere x 0 5, elsewhere y 1 5, elsewhere z 2 5, wait 11, complete, "
    "elsewhere v 3 5, dial v, elsewhere w 4 5, dial w, join x y z, serve"
)


@pytest.mark.parametrize(
    ("steps", "told", "rules"),
    [
        ("come a, wait 29", "0 none", {"last_call": 30}),  # a first round has its last call here, too
        # too few form no round, as the others may go on elsewhere, until another one of it is back; a newcomer is none
        (THREE + "lose b c, join a, wait 1000", "1 over lost", {}),
        (THREE + "lose b c, join a, wait 1000, come d, back b, complete", "2 complete: a b d", {}),
        # who is known to take part nowhere is no obstacle
        (THREE + "lose b c, proved b c stranger, join a, complete", "2 complete: a", {}),
        # of two halves the one with the highest rank goes on
        ("come a b, complete, lose b, join a", "1 over lost", {}),
        ("come a b, complete, lose a, join b", "1 over lost, 2 begun: b of 1", {}),
        # who could not dial is taken in where the others are too few: b alone would be enough, but no majority
        (
            "come a b c d, complete, join, serve, reached a 2, reached b 2, wall c, wall d, complete",
            "3 complete: d b c, a out",
            {},
        ),
        # the last round binds the next leader, also when its places are overwritten by those of one never complete
        (THREE + "join, serve, come d e, succeed without a b c, wait 1000", "1 over asked, 2 begun: a b c of 3", {}),
        # what one leader declared does, whoever has heard that it was complete
        (XYZ, "6 over came, 7 begun: x y z v w of 5", {}),
        (XYZ + ", succeed without y z, wait 1000", "6 over came, 7 begun: x y z v w of 5", {}),
        # who knows of no round forms none where there was one
        ("elsewhere a 0 3, come d, lose a, wait 1000", "0 none", {}),
        # a round counts as reached by its vote, and not by its number
        (FORMING + ", says x store_ready_round=6, says y store_ready_round=6", "0 none, 6 begun: x y of 2", {}),
        # nodes from elsewhere wait for each other, keep their ranks, and count on; rank 0 served what they have left
        ("elsewhere c 2 3 0, elsewhere b 1 3 0, complete", "6 complete: c b", {"last_call": 30}),
        # else it may be on its way
        ("elsewhere c 2 3, elsewhere b 1 3", "0 none", {"last_call": 30}),
        ("elsewhere c 2 3, elsewhere b 1 3, wait 11, complete", "6 complete: c b", {"last_call": 30}),
    ],
)
def test_what_a_leader_has_come_to(steps: str, told: str, rules: dict[str, int]):
    assert story("1:5", steps, back=BACK_S, majority=True, **rules) == told


@pytest.mark.parametrize("first", ["b", "c"])
def test_nodes_keep_their_ranks_whoever_is_first_to_say_that_their_round_is_over(first: str):
    leader = of_majority()
    ranks = {"b": 1, "c": 2}
    for name in (first, *ranks.keys() - {first}):
        place = Assignment(5, ranks[name], 3, name, host=f"host-{name}", machine=name, pid=7)
        kept = from_elsewhere(name, ranks[name], 3, server_rank=0, gone_server_rank=0, keeps=place, serves=name == "b")
        leader.hear(replace(kept, last_round=4, store_ready_round=5))
        assert leader.state == (5, "over"), "the node that served it, of rank 0, is gone"
    leader.join("b", "c")
    leader.complete()
    assert (leader.state, leader.ranks()) == ((6, "complete"), {"b": 1, "c": 0})


def test_round_that_may_have_been_complete_binds():
    undecided = EpochVote(7, 1, 5, "y")
    leader = of_majority(from_elsewhere("a", 0, 3, undecided), from_elsewhere("b", 1, 3))
    leader.wait(BACK_S)
    assert leader.assigned == {}
    assert "of round 7 must be here" in leader.machine.facts()
    leader.hear(*(node(name, votes=(EpochVote(7, rank, 5, "y"),)) for rank, name in ((2, "d"), (3, "e"))))
    leader.complete()
    assert leader.state == (8, "complete")


def test_plan_is_given_up_if_one_of_it_has_reached_a_round_elsewhere_meanwhile():
    """It went and came back before the end of its session was heard: its new session wrote the same key."""
    leader = of_majority(from_elsewhere("x", 0, 3), from_elsewhere("y", 1, 3))
    leader.wait(BACK_S)
    leader.serve()
    number = leader.number
    leader.say("y", store_ready_round=number, votes=votes_reached(leader.members["y"].votes, leader.assigned["y"]))
    elsewhere = EpochVote(number, 0, 2, "10.9.9.9 77 another", False)
    votes = (*leader.members["x"].votes, elsewhere)
    leader.say("x", store=None, votes=votes_reached(votes, leader.assigned["x"]), store_ready_round=number)
    assert leader.state == (0, "none")
    leader.wait(100)
    assert leader.number == number, f"x and y are not more than half of its round {number}, too"
    assert f"more than half of the nodes of round {number} must be here" in leader.machine.facts()


def stale(high: int) -> Leader:
    """Of a place that served round 3 of a, b and c, and is come to again after others."""
    places = {
        name: Assignment(3, rank, 3, name, f"host-{name}", name, 7, master_addr="m", master_port=1)
        for rank, name in enumerate("abc")
    }
    declared = Round(3, "complete", 3, master_addr="m", master_port=1)
    return Leader(1, high, declared, places, last_call=0, back=BACK_S, majority=True)


def take_over(leader: Leader, *members: Member) -> None:
    leader.members |= {member.node_id: member for member in members}
    leader.advance(*members, InitialListDone(finishing=False))


def test_place_that_served_an_earlier_round_forms_the_next_of_the_nodes_of_the_last():
    leader = stale(3)
    newest = (from_elsewhere(name, rank, 3) for rank, name in enumerate("cde"))
    take_over(leader, node("a", last_round=4, known_round=5), node("b", last_round=4, known_round=5), *newest)
    leader.wait(BACK_S)
    leader.complete()
    assert (leader.state, leader.ranks()) == ((6, "complete"), {"c": 0, "d": 1, "e": 2})


def test_place_that_served_an_earlier_round_waits_for_the_nodes_of_the_last():
    leader = stale(3)
    take_over(leader, from_elsewhere("a", 0, 3))
    leader.hear(from_elsewhere("b", 1, 3))
    assert leader.number == 3, "c is on its way"
    leader.hear(from_elsewhere("c", 2, 3))
    leader.complete()
    assert (leader.state, sorted(leader.ranks())) == ((6, "complete"), list("abc"))
    leader.lose("a")
    leader.join("b", "c")
    assert leader.number == 7, "the next one is waited for no longer"


@pytest.mark.parametrize("held", [(), (KeyValue(INITIALIZED, b"true", 1),)])
def test_leader_reads_that_there_was_a_round(held: tuple[KeyValue, ...]):
    """Of which nobody who is here knows: then it forms none."""
    real = object.__new__(RealLeader)
    real._rules, real._order, real._runtime = Rules(1, 5, majority=True), lambda _: None, SYSTEM
    real._first_here = True
    leader = of_majority()
    leader.machine, _ = real._take_over({kv.key: kv for kv in (KeyValue(PLACE_ID, b"here", 1), *held)})
    leader.hear(node("new"))
    leader.wait(1000)
    assert bool(leader.assigned) is not bool(held)


UNDECIDED = EpochVote(1, 0, 3, "10.0.0.1 4000 here.1")
"""In a round that its node has reached: what became of it then the node does not know."""


@pytest.mark.parametrize(
    ("place", "first_here", "led", "others", "forms"),
    [
        ("here", True, None, 0, True),  # it was begun here, and was not declared
        ("elsewhere", True, None, 0, False),  # it may have been declared there
        ("elsewhere", True, ("here.1", 0), 0, True),  # who led there says that it was not
        ("elsewhere", True, ("here.1", 1), 0, False),
        ("elsewhere", True, ("here.2", 0), 0, False),
        ("elsewhere", False, ("here.1", 0), 0, False),  # another one may have been, of which nobody here knows
        ("elsewhere", False, None, 1, False),  # though they are more than half
    ],
)
def test_a_round_of_which_nobody_knows_whether_it_was_complete(
    place: str, first_here: bool, led: tuple[str, int] | None, others: int, forms: bool
):
    leader = of_majority(high=2 + others)
    leader.machine = RoundStateMachine(leader.rules, lambda _: None, first_here=first_here, mark=f"{place}.3")
    votes = [
        node(f"a{rank}", store_ready_round=1, votes=(replace(UNDECIDED, rank=rank),)) for rank in range(1 + others)
    ]
    leader.hear(*votes, *([] if others else [node("b", last_led=led)]))
    leader.wait(1000)
    assert bool(leader.assigned) is forms
