"""The checker finds each kind of violation in records in which it was planted, and nothing in those without."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from soak.checker import Checker

Trace = list[dict[str, Any]]


def world(id_: str, size: int, begun: float, *, steps: int = 5, round_: int | None = None) -> Trace:
    """What a world of ``size`` nodes with a worker each writes; each of its ``steps`` takes a second."""
    trace: Trace = []
    for rank in range(size):
        who = {"node": f"node{rank}", "agent": f"agent{rank}", "pid": 1000 * rank + int(begun), "id": id_, "rank": rank}
        joined = {"what": "joined", "t": begun - 0.5, "size": size, "holder": ""}
        trace.append(who | joined | ({} if round_ is None else {"rdzv_round": str(round_)}))
        for step in range(steps):
            trace.append(who | {"what": "step", "step": step, "t0": begun + step, "t": begun + step + 0.9})
    return in_order(trace)


def in_order(trace: Iterable[dict[str, Any]]) -> Trace:
    return sorted(trace, key=lambda record: float(record["t"]))


def kinds(trace: Iterable[dict[str, Any]], checker: Checker | None = None) -> list[str]:
    """Of the violations that are found."""
    checker = checker or Checker()
    for record in trace:
        checker.feed(record)
    checker.settle()
    return [violation.kind for violation in checker.violations]


def two_worlds(**first: object) -> Trace:
    """One after the other; ``first`` is changed in what the first worker of the old one writes as it joins."""
    trace = world("old", 3, 100, round_=1) + world("new", 2, 110, round_=2)
    trace[0] |= first
    return trace


def last_step() -> dict[str, Any]:
    """Of rank 0 of the old world."""
    (found,) = [each for each in two_worlds() if each["id"] == "old" and each.get("step") == 4 and each["rank"] == 0]
    return found


SAVED = {"what": "saved", "t0": 104, "t": 110.5, "node": "node2", "agent": "a", "pid": 7, "id": "old", "rank": 2}
LATE_WORKER = SAVED | {"what": "joined", "t": 113, "id": "new", "size": 3, "holder": ""}
PLANTED: dict[str, tuple[Trace, set[str]]] = {
    "a step of an old world comes to its end late": ([*two_worlds(), last_step() | {"t": 112.5}], {"late_step"}),
    "a checkpoint of an old world": ([*two_worlds(), SAVED], {"late_saved"}),
    "a checkpoint just in time": ([*two_worlds(), SAVED | {"t": 110}], set()),
    "two worlds at once": (in_order(world("left", 2, 100) + world("right", 2, 103, steps=1)), {"two_worlds"}),
    "a rank that two have": (two_worlds(rank=1), {"ranks"}),
    "a rank that had a holder": (two_worlds(holder="node0/100"), {"ranks"}),
    "a rank that nobody has": ([e for e in two_worlds() if e["id"] != "old" or e["rank"] != 1], {"ranks"}),
    "a rank out of range": (two_worlds(rank=3), {"ranks"}),
    "sizes that differ": (two_worlds(size=4), {"sizes"}),
    "rounds that differ in one store": (two_worlds(rdzv_round="2"), {"rounds"}),
    "a round that is given twice": (world("old", 2, 100, round_=5) + world("new", 2, 110, round_=5), {"rounds"}),
    "a round that goes back": (world("old", 2, 100, round_=5) + world("new", 2, 110, round_=4), {"rounds"}),
    # it has the address of the store that is now another round's; the rank is free there
    "a worker of an old round in a new store": ([*two_worlds(), LATE_WORKER], {"store", "sizes"}),
    # the workers of the next round find the id that those of the last one have written
    "a store that is not fresh": (in_order(world("one", 2, 100) + world("one", 2, 110)), {"ranks", "store"}),
}


@pytest.mark.parametrize(("trace", "found"), PLANTED.values(), ids=PLANTED)
def test_each_violation_is_found_once(trace: Trace, found: set[str]) -> None:
    assert found <= set(kinds(trace))
    assert not found or len(kinds(trace)) <= len(found) + 1  # what follows from it
    assert bool(found) == bool(kinds(trace))


def test_worlds_one_after_the_other_are_right_in_any_order_of_reading() -> None:
    for seed in range(20):
        by_node = {
            node: [each for each in two_worlds() if each["node"] == node] for node in ("node0", "node1", "node2")
        }
        dice, shuffled = random.Random(seed), []
        while any(by_node.values()):  # each node's records are in a file, in order
            shuffled.append(by_node[dice.choice([node for node, rest in by_node.items() if rest])].pop(0))
        assert kinds(shuffled) == []
    late = [*(each for each in two_worlds() if each != last_step()), last_step() | {"t": 112.5}]
    for order in (late, in_order(late), late[::-1]):
        checker = Checker()
        assert kinds(order, checker) == ["late_step"]
        assert checker.violations[0].evidence["late_s"] == 2.5


@pytest.mark.parametrize(
    ("what", "t0", "cut", "healed", "found"),
    [
        ("step", 104.0, 105, 111.5, []),
        ("step", 104.0, 105, 109.9, ["late_step"]),  # it was told, and could have acted, before the new world began
        ("step", 104.0, 110.1, 111.5, ["late_step"]),
        ("step", 104.0, 105, 111.4, ["late_step"]),  # so long after it does know
        ("step", 110.2, 105, 111.5, ["two_worlds"]),
        ("saved", 104.0, 105, 111.5, ["late_saved"]),
    ],
)
def test_step_that_was_under_way_on_a_node_that_is_cut_off(what, t0, cut, healed, found) -> None:
    checker = Checker(heard_s=1.0)
    checker.cut("node0", cut)
    checker.healed("node0", healed)
    assert kinds([*two_worlds(), last_step() | {"what": what, "t0": t0, "t": 112.5}], checker) == found
    assert bool(checker.excused) == (not found)


def test_rounds_of_another_job_begin_again() -> None:
    checker = Checker()
    assert kinds(world("old", 2, 100, round_=5), checker) == []
    checker.new_job(107)
    assert kinds(world("new", 2, 110, round_=1), checker) == []
    assert checker.worked == 2
