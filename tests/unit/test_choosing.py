"""Who of those that wait is in a round, where rounds have a unit and domains a least number of nodes."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from kits.unit.membership_steps import largest as by_trying
from kits.unit.membership_steps import node

from rdzv_plugins.elastic.keys import Assignment
from rdzv_plugins.elastic.leading.choosing import Shape, choose, size_of
from rdzv_plugins.elastic.leading.membership import Rules
from rdzv_plugins.elastic.leading.ranks import Former

NEW = Former({})


def nodes(names: str):
    """``a1 b1``: a node of domain a, and one of domain b."""
    return [node(name, domain=name[0]) for name in names.split()]


def after(names: str) -> Former:
    """These have been in the last round."""
    return Former({n.node_id: Assignment(1, at, 9, n.node_id, domain=n.domain) for at, n in enumerate(nodes(names))})


def chosen(waiting: str, shape: Shape, former: Former = NEW) -> str:
    return " ".join(sorted(each.node_id for each in choose(nodes(waiting), former, shape)))


@pytest.mark.parametrize(
    ("waiting", "shape", "names"),
    [
        ("a1 a2 a3", Shape(4, unit=2), "a1 a2"),
        ("a1 a2 b1", Shape(4, per_domain=2), "a1 a2"),
        ("a1 b1 a2 b2 b3", Shape(4, per_domain=2), "a1 a2 b1 b2"),
        ("a1 b1 b2 b3 a2", Shape(3, per_domain=2), "b1 b2 b3"),  # of two domains there would be four
        ("a1 a2 b1 b2 c1 c2", Shape(5, per_domain=2), "a1 a2 b1 b2"),
        ("a1 a2 b1 b2 b3", Shape(8, unit=2, per_domain=2), "a1 a2 b1 b2"),
        ("a1 b1", Shape(4, per_domain=2), ""),
    ],
)
def test_first_come_as_far_as_that_fits(waiting, shape, names):
    assert chosen(waiting, shape) == names


def test_spare_of_the_same_domain_comes_before_one_that_was_there_earlier():
    assert chosen("a1 b1 b2 b3 b4 a3", Shape(4), after("a1 a2 b1 b2")) == "a1 a3 b1 b2"


def test_spare_of_another_domain_comes_where_there_is_none_of_the_same():
    assert chosen("a1 b1 b2 b3", Shape(4), after("a1 a2 b1 b2")) == "a1 b1 b2 b3"


def test_who_was_there_stays():
    assert chosen("c1 c2 c3 c4 a1 a2", Shape(4, per_domain=2), after("a1 a2")) == "a1 a2 c1 c2"


def test_domain_that_has_become_too_small_is_left_out_as_a_whole():
    assert chosen("a1 a2 b1", Shape(4, per_domain=2), after("a1 a2 b1 b2")) == "a1 a2"


def test_every_small_world():
    """As many as can be; of each domain enough; found by trying all sizes."""
    shapes = [Shape(most, unit, least) for most in (4, 6) for unit in (1, 2, 3) for least in (1, 2, 3)]
    for counts in itertools.product(range(5), repeat=3):
        waiting = nodes(" ".join(f"{d}{n}" for d, count in zip("abc", counts, strict=True) for n in range(count)))
        for shape in shapes:
            rules = Rules(1, shape.most, node_unit=shape.unit, min_per_domain=shape.per_domain)
            for former in (NEW, after("a0 a1 b0 b1 c0 c1")):
                found = choose(waiting, former, shape)
                case = f"{counts} {shape}: {[each.node_id for each in found]}"
                assert len(found) == size_of(waiting, former, shape) == by_trying(waiting, rules), case
                assert all(n >= shape.per_domain for n in Counter(each.domain for each in found).values()), case
