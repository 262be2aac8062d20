"""Every order in which nodes can go from place to place, die, and be late: there are never two worlds.

A node that goes elsewhere tells nobody; leaders hear of it late, and declare rounds meanwhile. Places lose their
memory.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.unit.many_worlds import without_collections
from kits.unit.quorum_world import QuorumWorld

from rdzv_plugins.elastic.keys import Member
from rdzv_plugins.elastic.leading.quorum import Quorum, seat_of


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
    Case(3, places=3, move=2, die=1, begin=1),
    Case(3, places=3, move=2, begin=2),
    Case(2, move=2, forget=1),
    Case(4, places=3, move=2, begin=2),
    Case(1, newcomers=2, move=3, begin=3),
    Case(3, move=2, leave=1),
    Case(3, move=3, begin=3),  # a node comes back to the place where a round with it is being formed
    Case(2, newcomers=1, move=3, begin=3, ask=1),  # and to where one was complete, after it has reached another
    Case(1, newcomers=1, move=2, begin=3, ask=1, succeed=1),  # a leader begins a round, the next is a newcomer
]


@without_collections()
def explore(case: Case, make: type[Quorum] = Quorum, of: type[QuorumWorld] = QuorumWorld) -> tuple[int, int]:
    """Visits all states; returns how many there are, and how many rounds were declared. Raises ``AssertionError``."""
    world = of(case.nodes, case.newcomers, case.places, make)
    spent = dict.fromkeys(("move", "die", "forget", "begin", "leave", "succeed", "ask"), 0)
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
    return len(seen), declared


@pytest.mark.parametrize(
    "case",
    [*CASES[:4], *(pytest.param(case, marks=pytest.mark.thorough) for case in CASES[4:])],
    ids=lambda case: "-".join(map(str, case)),
)
def test_there_are_never_two_worlds(case: Case):
    states, declared = explore(case)
    print(f"{states} states, {declared} rounds declared")
    assert declared


class Half(Quorum):
    """Any half will do."""

    def _lacking(self, chosen, members):
        return ((which, votes) for which, votes in self._votes(chosen, members) if 2 * len(votes) < which[1])


class Forgetful(Quorum):
    """A round that was reached, and not heard to be complete, does not bind."""

    def _votes(self, chosen, members):
        last = self.last(members)
        return [(which, votes) for which, votes in super()._votes(chosen, members) if which[0] <= last]


class Trusting(Quorum):
    """Who comes back to where a round with it is being formed was nowhere meanwhile."""

    def went_elsewhere(self, planned):
        return False


class Overwritten(Quorum):
    """A leader knows of the last round only what the places in it say, as far as they are still there."""

    @property
    def knows(self):
        return True  # else the model would take it for the first round

    def _lacking(self, chosen, members):
        return (each for each in super()._lacking(chosen, members) if each[0][1])

    def _known(self, members):
        yield from self._here.values()
        for node in {*members, *self._stay}:
            yield from self._heard.get(node, ())


class Resuming(QuorumWorld):
    """A node that hears of a round that was complete goes on in it, whatever it has reached since."""

    def _learned(self, seats, one):
        return (seat_of(one, complete=True),)


class Repeating(QuorumWorld):
    """A node that leaves says so at each place to which it comes."""

    def _hear_again(self, quorum, name):
        quorum.heard(Member(name, name, name, 1, "", "", 1, seats=self.nodes[name].seats))
        quorum.stays(name)
        return False


@pytest.mark.thorough
@pytest.mark.parametrize(("of", "case"), [(Repeating, CASES[7]), (Resuming, CASES[9])])
def test_the_model_finds_nodes_that_do_wrong(of: type[QuorumWorld], case: Case):
    with pytest.raises(AssertionError, match="two worlds"):
        explore(case, of=of)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "case"),
    [(Half, CASES[0]), (Half, CASES[5]), (Forgetful, CASES[6]), (Trusting, CASES[8]), (Overwritten, CASES[10])],
)
def test_the_model_finds_what_is_wrong(make: type[Quorum], case: Case):
    with pytest.raises(AssertionError, match="two worlds"):
        explore(case, make)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(0, 2),
    st.integers(2, 3),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 10**6)), min_size=10, max_size=120),
)
def test_larger_jobs_at_random(nodes: int, newcomers: int, places: int, choices: list[tuple[int, int]]):
    """Mostly what leads to a round, at times that nodes go, die, or places forget."""
    world = QuorumWorld(nodes, newcomers, places)
    story = []
    for kind, choice in choices:
        steps = world.steps()
        likely = [step for step in steps if step[0] not in ("move", "die", "forget")]
        steps = likely if likely and kind > 2 else [step for step in steps if step[0] != "forget" or kind == 0]
        if steps:
            name, arguments = steps[choice % len(steps)]
            getattr(world, name)(*arguments)
            story.append((name, arguments))
        assert len(world.worlds()) < 2, f"two worlds, {world.worlds()}: {story}"
