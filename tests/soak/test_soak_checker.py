"""The checker finds each kind of violation in a trace in which it was planted, and nothing in one without."""

from __future__ import annotations

import random

import pytest

from soak.checker import Checker
from soak.traces import check, in_order, kinds, recorded, world


def two_worlds() -> list[dict[str, object]]:
    return world("old", 3, 100, round_=1) + world("new", 2, 110, round_=2)


@pytest.mark.parametrize("name", ["parallel.jsonl", "tiered.jsonl"])
def test_a_real_job_is_right(name: str) -> None:
    checker = check(recorded(name))
    assert checker.violations == []
    assert checker.worked >= 3
    assert checker.newest is not None
    assert checker.newest.worked_since(checker.newest.begun or 0)


def test_worlds_one_after_the_other_are_right_in_any_order_of_reading() -> None:
    trace = two_worlds()
    for seed in range(20):
        by_node = {node: [each for each in trace if each["node"] == node] for node in ("node0", "node1", "node2")}
        dice, shuffled = random.Random(seed), []
        while any(by_node.values()):  # each node's records are in a file, in order
            node = dice.choice([node for node, rest in by_node.items() if rest])
            shuffled.append(by_node[node].pop(0))
        assert kinds(shuffled) == []


def test_step_of_an_old_world_after_the_new_one_has_begun() -> None:
    trace = two_worlds()
    (last,) = [each for each in trace if each["id"] == "old" and each.get("step") == 4 and each["rank"] == 0]
    last["t"] = 112.5
    for order in (trace, in_order(trace), trace[::-1]):
        (violation,) = check(order).violations
        assert violation.kind == "late_step"
        assert violation.evidence["late_s"] == 2.5
        assert violation.evidence["act"]["pid"] == last["pid"]


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
def test_step_that_was_under_way_on_a_node_that_is_cut_off(
    what: str, t0: float, cut: float, healed: float, found: list[str]
) -> None:
    trace = two_worlds()
    (last,) = [each for each in trace if each["id"] == "old" and each.get("step") == 4 and each["rank"] == 0]
    late = last | {"what": what, "t0": t0, "t": 112.5}
    checker = Checker(heard_s=1.0)
    checker.cut(str(late["node"]), cut)
    checker.healed(str(late["node"]), healed)
    for record in [*trace, late]:
        checker.feed(record)
    checker.settle()
    assert [violation.kind for violation in checker.violations] == found
    assert bool(checker.excused) == (not found)


def test_checkpoint_of_an_old_world_after_the_new_one_has_begun() -> None:
    saved = {"what": "saved", "t0": 104, "t": 110, "node": "node2", "agent": "a", "pid": 7, "id": "old", "rank": 2}
    assert kinds([*two_worlds(), saved]) == []
    assert kinds([*two_worlds(), saved | {"t": 110.5}]) == ["late_saved"]


def test_two_worlds_at_once() -> None:
    trace = world("left", 2, 100) + world("right", 2, 103, steps=1)
    assert "two_worlds" in kinds(in_order(trace))


@pytest.mark.parametrize("holder", ["node0/100", ""])
def test_rank_that_two_have(holder: str) -> None:
    trace = two_worlds()
    trace[0]["rank"], trace[0]["holder"] = 1, holder
    assert set(kinds(trace)) == {"ranks"}


def test_rank_that_nobody_has() -> None:
    trace = [each for each in two_worlds() if each["id"] != "old" or each["rank"] != 1]
    assert kinds(trace) == ["ranks"]


def test_rank_out_of_range() -> None:
    trace = two_worlds()
    trace[0]["rank"] = 3
    assert "ranks" in kinds(trace)


def test_sizes_that_differ() -> None:
    trace = two_worlds()
    trace[0]["size"] = 4
    assert "sizes" in kinds(trace)


def test_rounds_that_differ_in_one_store() -> None:
    trace = two_worlds()
    trace[1]["rdzv_round"] = "2"
    assert "rounds" in kinds(trace)


def test_round_that_is_given_twice_or_goes_back() -> None:
    for number in (4, 5):
        assert kinds(world("old", 2, 100, round_=5) + world("new", 2, 110, round_=number)) == ["rounds"]


def test_rounds_of_another_job_begin_again() -> None:
    checker = check(world("old", 2, 100, round_=5))
    checker.new_job(107)
    for record in world("new", 2, 110, round_=1):
        checker.feed(record)
    checker.settle()
    assert checker.violations == []


def test_worker_of_an_old_round_in_a_new_store() -> None:
    """It has the address of the store that is now another round's; the rank is free there."""
    late = {"what": "joined", "t": 113, "node": "node2", "agent": "agent2", "pid": 7, "id": "new", "rank": 2, "size": 3}
    assert "store" in kinds([*two_worlds(), late | {"holder": ""}])


def test_store_that_is_not_fresh() -> None:
    """The workers of the next round find the id that those of the last one have written."""
    trace = world("one", 2, 100) + world("one", 2, 110)
    assert {"ranks", "store"} <= set(kinds(in_order(trace)))


def test_each_is_said_once() -> None:
    trace = in_order(world("left", 2, 100, steps=50) + world("right", 2, 103, steps=50))
    assert len(kinds(trace)) == len(set(kinds(trace))) <= 2
