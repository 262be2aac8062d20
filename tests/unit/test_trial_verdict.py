"""What follows from what was measured: who is broken or slow, who is left out, and who is not blamed for another."""

from __future__ import annotations

import random

import pytest

from rdzv_plugins.elastic.leading.trial.schedule import dialled, phases
from rdzv_plugins.elastic.leading.trial.verdict import Fault, Measured, consequences, judge
from rdzv_plugins.elastic.trial_keys import Checked, Way

GOOD = 400 * 2**20


def network(count: int, rng: random.Random | None = None) -> Measured:
    """All is well, with what differs from one way to the other."""
    rng = rng or random.Random(1)
    measured = Measured(count)
    tested = {pair for phase in phases(count, "seed") for pair in phase}
    for pair in sorted(dialled(count)):
        rate = int(GOOD * rng.uniform(0.7, 1.4)) if pair in tested else 0
        measured.ways[pair] = Way(pair[1], int(rng.uniform(80, 400)), rate)
    for node in range(count):
        measured.checks[node] = (Checked("processor speed", value=rng.uniform(1.0, 1.6), unit="GiB/s"),)
        measured.service_us[node] = int(rng.uniform(300, 3000))
    return measured


def found(measured: Measured) -> list[tuple[str, tuple[int, ...]]]:
    return [(fault.kind, fault.nodes) for fault in judge(measured, 3.0, "node{}".format)]


def slow(measured: Measured, pairs, by: float) -> None:
    for pair in pairs:
        way = measured.ways[pair]
        measured.ways[pair] = Way(way.to, way.latency_us, int(way.rate / by))


def cut(measured: Measured, pairs) -> None:
    for pair in pairs:
        measured.ways[pair] = Way(pair[1], problem="no answer within 2 s")


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16, 33])
def test_nobody_is_blamed_where_all_is_well(count):
    for seed in range(10):
        assert found(network(count, random.Random(seed))) == []


@pytest.mark.parametrize("count", [3, 4, 7, 16])
def test_a_slow_node_is_found_and_its_partners_are_not_blamed(count):
    for node in range(0, count, max(1, count // 7)):
        measured = network(count)
        slow(measured, [pair for pair in measured.ways if node in pair], 8)
        assert found(measured) == [("slow", (node,))]
        assert "throughput" in judge(measured, 3.0, str)[0].why


def test_a_slow_way_is_found():
    measured = network(16)
    pair = next(pair for pair, way in measured.ways.items() if way.rate)
    slow(measured, [pair], 8)
    assert found(measured) == [("slow", pair)]


def test_a_network_that_is_uneven_is_nobodys_fault():
    measured = network(16)
    slow(measured, [pair for phase in phases(16, "seed")[:2] for pair in phase], 8)
    assert [kind for kind, _ in found(measured)] == ["uneven"]
    assert consequences(judge(measured, 3.0, str), 5).left_out == {}


def test_what_is_faster_than_can_be_told_is_not_compared():
    measured = network(16)
    for pair, way in measured.ways.items():
        measured.ways[pair] = Way(way.to, way.latency_us, way.rate and (500 * 2**20 if 3 in pair else 15_000 * 2**20))
    assert found(measured) == []


def test_a_node_that_answers_late_is_slow_and_so_is_one_way():
    measured = network(16)
    for pair, way in measured.ways.items():
        if 5 in pair:
            measured.ways[pair] = Way(way.to, 40_000, way.rate)
    assert found(measured) == [("slow", (5,))]
    measured = network(16)
    measured.ways[2, 9] = Way(9, 40_000, measured.ways[2, 9].rate)
    assert found(measured) == [("slow", (2, 9))]


def test_a_little_later_is_not_slow():
    measured = network(16)
    for pair, way in measured.ways.items():
        if 5 in pair:
            measured.ways[pair] = Way(way.to, 4_000, way.rate)
    assert found(measured) == []


def test_a_broken_way_is_found_and_a_node_that_explains_several():
    measured = network(16)
    cut(measured, [(3, 12)])
    assert found(measured) == [("broken", (3, 12))]
    cut(measured, [(3, 9)])
    assert found(measured) == [("broken", (3,))]
    assert "2 of 15 other nodes, as node9: no answer" in judge(measured, 3.0, "node{}".format)[0].why


def test_a_node_without_any_way_is_found():
    measured = network(16)
    cut(measured, [pair for pair in measured.ways if 7 in pair])
    assert found(measured) == [("broken", (7,))]


def test_one_side_of_a_network_cut_in_two_is_left_out():
    measured = network(8)
    cut(measured, [pair for pair in measured.ways if (pair[0] < 5) != (pair[1] < 5)])
    out = consequences(judge(measured, 3.0, str), 3)
    assert set(out.left_out) == {5, 6, 7}
    assert out.fatal == ()
    assert consequences(judge(measured, 3.0, str), 2).fatal


def test_what_a_node_says_of_itself():
    measured = network(5)
    measured.checks[2] = (Checked("disk", "broken", "nothing can be written"),)
    measured.problems[4] = "no memory"
    assert found(measured) == [("broken", (4,)), ("broken", (2,))]
    measured = network(5)
    measured.checks[1] = (Checked("processor speed", value=0.2),)
    assert found(measured) == [("slow", (1,))]


def test_one_that_claims_wonders_makes_nobody_slow():
    measured = network(16)
    for pair, way in measured.ways.items():
        if 0 in pair:
            measured.ways[pair] = Way(way.to, 1, way.rate and 2**50)
    measured.checks[0] = (Checked("processor speed", value=1e300),)
    assert found(measured) == []


def test_of_two_measurements_the_better_counts_part_by_part():
    measured = Measured(2)
    measured.add((0, 1), Way(1, problem="no answer"))
    measured.add((0, 1), Way(1, 200, 0))
    measured.add((0, 1), Way(1, 100, 50))
    measured.add((0, 1), Way(1, 300, 70))
    assert measured.ways == {(0, 1): Way(1, 100, 70)}


def test_broken_ones_are_left_out_first_and_a_slow_one_may_stay():
    faults = [
        Fault("slow", (1,), "is slow"),
        Fault("broken", (2, 4), "have no way"),
        Fault("broken", (3,), "is broken"),
    ]
    out = consequences(faults, 2)
    assert set(out.left_out) == {3, 4}
    assert [fault.nodes for fault in out.kept] == [(1,)]
    out = consequences(faults, 1)
    assert set(out.left_out) == {3}
    assert [fault.nodes for fault in out.fatal] == [(2, 4)]


def test_of_a_pair_the_one_with_more_faults_is_left_out():
    faults = [Fault("broken", (2, 4), "have no way"), Fault("slow", (2,), "is slow")]
    out = consequences(faults, 5)
    assert set(out.left_out) == {2}
    assert out.kept == ()
