"""Every order in which nodes can go from place to place, die, and be late: there are never two worlds.

A node that goes elsewhere tells nobody; leaders hear of it late, and declare rounds meanwhile. Places lose their
memory.
"""

from __future__ import annotations

import gc
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import pytest

from rdzv_plugins.elastic.coordinator.gates import MemberHeard, ProvedGone, RoundDeclared, RoundPlanned
from rdzv_plugins.elastic.coordinator.quorum import Quorum, begun_at
from rdzv_plugins.elastic.keys import Assignment, EpochVote, Member, Round, vote_of, votes_complete, votes_reached

NOWHERE = -1
T = TypeVar("T")


@dataclass
class Node:
    place: int = NOWHERE
    votes: tuple[EpochVote, ...] = ()
    alive: bool = True
    works: Assignment | None = None
    """Its place in the round of which it has heard that it is complete, until it goes to another place."""
    said: bool = False
    """It has said that it leaves."""


@dataclass
class Place:
    quorum: Quorum = field(default_factory=Quorum)
    believed: frozenset[str] = frozenset()
    """The members, as far as its leader has heard."""
    number: int = 0
    plan: tuple[Assignment, ...] = ()
    reached: frozenset[str] = frozenset()
    complete: tuple[Assignment, ...] = ()
    """The places of the round that works, as far as its leader knows."""
    begun: str = ""
    """Of its rounds: another one after each start without memory, and for each leader."""
    declared: Round = field(default_factory=Round)
    held: dict[str, Assignment] = field(default_factory=dict)
    """The newest place that each node was told."""
    heard_of: int = 0
    """The newest round that any node has told of."""

    def tell(self, name: str, votes: tuple[EpochVote, ...]) -> bool:
        """The leader hears the node. Returns whether the round being formed has to be given up."""
        self.heard_of = max([self.heard_of, *(vote.round for vote in votes)])
        return self.quorum.observe(MemberHeard(Member(name, name, name, 1, "", "", 1, votes=votes), True), 0)


class QuorumWorld:
    """Nodes and the places where they meet, with the real ``Quorum`` at each: what a leader believes may be late.

    Each method is one step, and whoever calls them decides what comes first. ``nodes`` form the first round at place 0;
    ``newcomers`` come later.
    """

    def __init__(self, nodes: int, newcomers: int, places: int) -> None:
        self.nodes = {f"n{number}": Node() for number in range(nodes + newcomers)}
        self.places = [Place(Quorum(Round(), {}, str(at), window=0), begun=f"{at}.1") for at in range(places)]
        first = [f"n{number}" for number in range(nodes)]
        plan = tuple(Assignment(1, rank, nodes, name, master_addr="0") for rank, name in enumerate(first))
        for name, vote in zip(first, plan, strict=True):
            self.nodes[name] = Node(0, (vote_of(vote, complete=True),), works=vote)
            self._hear(0, name)
        zero = self.places[0]
        zero.number, zero.plan, zero.held = 1, plan, {place.node_id: place for place in plan}
        self.declare(0)

    def copy(self) -> QuorumWorld:
        twin = shallow(self)
        twin.nodes = {name: shallow(node) for name, node in self.nodes.items()}
        twin.places = list(map(_twin_of_place, self.places))
        return twin

    def steps(self) -> list[tuple[str, Any]]:
        """What can happen next, whatever a case allows of it."""
        found: list[tuple[str, Any]] = []
        for name, node in self.nodes.items():
            if node.alive:
                found += [("move", (name, at)) for at in range(len(self.places)) if at != node.place]
                found.append(("die", (name,)))
                if node.place != NOWHERE and not node.said:
                    found.append(("leave", (name,)))
        for at, place in enumerate(self.places):
            found += [("forget", (at,)), ("succeed", (at,))]
            if place.complete:
                found.append(("ask", (at,)))
            for name in place.believed:
                if not self._is_here(at, name):
                    found.append(("notice", (at, name)))
            for name, node in self.nodes.items():
                if not node.alive and node.place == at and name not in place.quorum._stay:
                    found.append(("prove", (at, name)))
            if not place.plan and not place.complete and place.believed:
                found.append(("begin", (at,)))
            for one in place.plan:
                if one.node_id not in place.reached and self._is_here(at, one.node_id) and not self._said(one):
                    found.append(("reach", (at, one)))
            if place.plan and len(place.reached) == len(place.plan):
                found.append(("declare", (at,)))
            for one in place.complete:
                if self._is_here(at, one.node_id) and self._is_told(one):
                    found.append(("learn", (at, one)))
        return found

    def move(self, name: str, at: int) -> None:
        """Its session ends, or it has lost the other place: it goes to the next. A leader hears of it later."""
        node = self.nodes[name]
        node.place, node.works = at, None
        self._hear(at, name)

    def die(self, name: str) -> None:
        self.nodes[name].alive = False

    def leave(self, name: str) -> None:
        """It says that it leaves. It may live on for a while, and go to another place."""
        node = self.nodes[name]
        node.said = True
        self.places[node.place].quorum.observe(ProvedGone(name), 0)
        self.notice(node.place, name)

    def forget(self, at: int) -> None:
        """The place is started again, without memory; its nodes have no session any more."""
        for node in self.nodes.values():
            if node.place == at:
                node.place, node.works = NOWHERE, None
        here = f"{begun_at(self.places[at].begun)}'"
        self.places[at] = Place(Quorum(Round(), {}, here, window=0), begun=f"{here}.1")

    def succeed(self, at: int) -> None:
        """Another node leads at the place. It knows what is written there, and what the members say."""
        place = self.places[at]
        told, place.begun, place.plan = place.quorum._heard, f"{place.begun}1", ()
        places = {name: one for name, one in place.held.items() if one.round == place.declared.number}
        place.quorum = Quorum(place.declared, places, begun_at(place.begun), window=0)
        for name in place.believed:
            place.tell(name, told[name])

    def ask(self, at: int) -> None:
        """A node asks for another round: this one is over, and who has not heard that it was complete never does."""
        for one in self.places[at].complete:
            self.nodes[one.node_id].works = None
        self.places[at].complete = ()

    def notice(self, at: int, name: str) -> None:
        place = self.places[at]
        place.believed -= {name}
        if any(one.node_id == name for one in place.plan):
            place.plan = ()
        if any(one.node_id == name for one in place.complete):
            place.complete = ()

    def prove(self, at: int, name: str) -> None:
        self.places[at].quorum.observe(ProvedGone(name), 0)

    def begin(self, at: int) -> None:
        place = self.places[at]
        chosen = sorted(place.believed)
        if not place.quorum.knows_of_round or place.quorum.objection(chosen, chosen):
            return  # a first round: that there is but one, ``FailoverBackend`` sees to
        place.number = max(place.number, place.heard_of) + 1
        place.reached = frozenset()
        place.plan = tuple(
            Assignment(place.number, rank, len(chosen), name, master_addr=str(at), epoch=place.begun)
            for rank, name in enumerate(chosen)
        )
        place.held |= {one.node_id: one for one in place.plan}
        place.quorum.observe(RoundPlanned({one.node_id: one for one in place.plan}), 0)

    def reach(self, at: int, one: Assignment) -> None:
        node = self.nodes[one.node_id]
        node.votes = votes_reached(node.votes, one)
        self.places[at].reached |= {one.node_id}
        self._hear(at, one.node_id)

    def declare(self, at: int) -> None:
        place = self.places[at]
        place.complete, place.plan = place.plan, ()
        first = place.complete[0]
        place.declared = Round(first.round, "complete", first.world, master_addr=first.master_addr, epoch=first.epoch)
        places = {one.node_id: one for one in place.complete}
        place.quorum.observe(RoundDeclared(place.declared, places), 0)

    def learn(self, at: int, one: Assignment) -> None:
        """It hears that the round is complete. If it does not go on in it, it says so, and the round is over."""
        node = self.nodes[one.node_id]
        if self._accepts(one):
            node.works = one
        else:
            self.ask(at)
        node.votes = votes_complete(node.votes, one)

    def worlds(self) -> list[tuple[str, ...]]:
        """The rounds that can work: each node does, or is about to once it hears of it."""
        found = []
        for at, place in enumerate(self.places):
            names = tuple(one.node_id for one in place.complete)
            if names and all(self._stays(at, one) for one in place.complete):
                found.append(names)
        return found

    def key(self) -> object:
        parts: list[object] = [tuple((n.place, n.votes, n.alive, n.works, n.said) for n in self.nodes.values())]
        for p in self.places:
            ours, _, begun, declared, told, stay, _, gone, here, brought, *_ = vars(p.quorum).values()
            parts.append((ours, begun, declared, frozenset(told.items()), frozenset(stay), len(gone)))
            parts.append((frozenset(here.items()), frozenset(brought.items()) if p.plan else None))
            parts.append((p.believed, p.number, p.plan, p.reached, p.complete, p.begun, p.heard_of))
            parts.append((p.declared, frozenset(p.held.items())))
        return hash(tuple(parts))

    def _stays(self, at: int, one: Assignment) -> bool:
        node = self.nodes[one.node_id]
        works = node.works == one or (self._is_told(one) and self._accepts(one))
        return node.place == at and works and not node.said

    def _is_told(self, one: Assignment) -> bool:
        """Whether the node has not heard yet that the round was complete, which it has reached."""
        return vote_of(one, complete=False) in self.nodes[one.node_id].votes

    def _accepts(self, one: Assignment) -> bool:
        return len(votes_complete(self.nodes[one.node_id].votes, one)) == 1

    def _said(self, one: Assignment) -> bool:
        return self.nodes[one.node_id].said

    def _is_here(self, at: int, name: str) -> bool:
        return self.nodes[name].alive and self.nodes[name].place == at

    def _hear(self, at: int, name: str) -> None:
        place = self.places[at]
        if self.nodes[name].said:
            return  # a node that was leaving comes to another place: it says nothing there
        place.believed |= {name}
        spoilt = place.tell(name, self.nodes[name].votes)
        if spoilt and any(one.node_id == name for one in place.plan):
            place.plan = ()


def shallow(value: T) -> T:
    """As ``copy.copy`` copies a plain object, in a quarter of the time."""
    twin = object.__new__(type(value))
    twin.__dict__ = value.__dict__.copy()
    return twin


def _twin_of_place(place: Place) -> Place:
    twin = shallow(place)
    twin.quorum, twin.held = shallow(place.quorum), place.held.copy()
    copies = [(name, value.copy()) for name, value in vars(place.quorum).items() if type(value) in (dict, set)]
    vars(twin.quorum).update(copies)
    return twin


class Case(NamedTuple):
    """A job, and how often what can happen to it."""

    nodes: int
    newcomers: int = 0
    places: int = 2
    move: int = 0
    die: int = 0
    forget: int = 0
    begin: int = 2
    leave: int = 0
    succeed: int = 0
    ask: int = 0


CASES = [
    Case(2, move=2, die=1),
    Case(2, newcomers=1, move=2),
    Case(3, places=3, move=2, begin=2),
    Case(3, places=3, move=2, die=1, begin=1),
    Case(2, move=2, forget=1),
    Case(4, places=3, move=2, begin=2),
    Case(1, newcomers=2, move=3, begin=3),
    Case(3, move=2, leave=1),
    Case(3, move=3, begin=3),  # a node comes back to the place where a round with it is being formed
    Case(2, newcomers=1, move=3, begin=3, ask=1),  # and to where one was complete, after it has reached another
    Case(1, newcomers=1, move=2, begin=3, ask=1, succeed=1),  # a leader begins a round, the next is a newcomer
]


def explore(case: Case) -> int:
    """Visits all states; returns how many rounds were declared."""
    world = QuorumWorld(case.nodes, case.newcomers, case.places)
    spent = dict.fromkeys(case._fields[3:], 0)
    seen = {(world.key(), *spent.values())}
    todo: deque[tuple[QuorumWorld, dict[str, int], tuple[object, ...]]] = deque([(world, spent, ())])
    declared = 0
    while todo:
        world, spent, story = todo.popleft()
        for name, arguments in world.steps():
            now_spent = spent
            if name in spent:
                if spent[name] == getattr(case, name):
                    continue
                now_spent = {**spent, name: spent[name] + 1}
            after = world.copy()
            getattr(after, name)(*arguments)
            declared += name == "declare"
            told = (*story, (name, arguments))
            assert len(after.worlds()) < 2, f"two worlds, {after.worlds()}: {told}"
            key = (after.key(), *now_spent.values())
            if key not in seen:
                seen.add(key)
                todo.append((after, now_spent, told))
    return declared


@pytest.mark.parametrize(
    "case",
    [*CASES[:3], *(pytest.param(each, marks=pytest.mark.thorough) for each in CASES[3:])],
    ids=lambda case: "-".join(map(str, case)),
)
def test_there_are_never_two_worlds(case: Case):
    gc.disable()  # worlds are no garbage: to look at all of them again and again takes a fifth of the time
    try:
        assert explore(case)
    finally:
        gc.enable()
