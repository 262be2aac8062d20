"""Who measures the way to whom: every pair is dialled, and a few are tested, at no time two by one node."""

from __future__ import annotations

import math

import pytest

from rdzv_plugins.elastic.leading.trial.schedule import dialled, in_turns, other_partners, phases


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 15, 16, 17, 129])
def test_every_pair_is_dialled(count):
    assert dialled(count) == {(one, other) for other in range(count) for one in range(other)}


def test_of_many_each_dials_and_is_dialled_by_some():
    assert len(dialled(200)) == 200 * 64


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 8, 15, 16, 17, 100, 1000])
def test_phases_are_few_and_in_each_a_node_has_one_partner(count):
    found = phases(count, "a seed")
    assert len(found) <= max(3, math.ceil(math.log2(count)))
    partners: dict[int, set[int]] = {}
    for phase in found:
        busy = [node for pair in phase for node in pair]
        assert len(busy) == len(set(busy)) >= count - 1
        for one, other in phase:
            assert 0 <= one < other < count
            partners.setdefault(one, set()).add(other)
            partners.setdefault(other, set()).add(one)
    met = sum(map(len, partners.values()))
    assert met == 2 * sum(map(len, found)), "nobody meets the same one twice"
    assert partners.keys() == set(range(count))


def test_other_seeds_choose_other_pairs():
    tested = [{pair for phase in phases(16, str(seed)) for pair in phase} for seed in range(40)]
    assert set.union(*tested) == dialled(16)


def test_pairs_are_put_into_turns():
    pairs = [(0, 1), (0, 2), (1, 2), (3, 4)]
    turns = in_turns(pairs)
    assert sorted(pair for turn in turns for pair in turn) == pairs
    assert all(len({node for pair in turn for node in pair}) == 2 * len(turn) for turn in turns)
    assert len(turns) == 3


def test_other_partners_are_none_of_those_who_are_suspected_themselves():
    found = other_partners(2, 6, {0, 5}, "seed", 9)
    assert sorted(found) == [(1, 2), (2, 3), (2, 4)]
    assert len(other_partners(2, 100, set(), "seed", 3)) == 3
