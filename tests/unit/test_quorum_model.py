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
def explore(case: Case) -> tuple[int, int]:
    """Visits all states; returns how many there are, and how many rounds were declared. Raises ``AssertionError``."""
    world = QuorumWorld(case.nodes, case.newcomers, case.places)
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
    [*CASES[:2], CASES[3], *(pytest.param(each, marks=pytest.mark.thorough) for each in (CASES[2], *CASES[4:]))],
    ids=lambda case: "-".join(map(str, case)),
)
def test_there_are_never_two_worlds(case: Case):
    states, declared = explore(case)
    print(f"{states} states, {declared} rounds declared")
    assert declared


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
