"""Who of those that wait is in a round, and who gets which rank: given, kept, ordered or by arrival."""

from __future__ import annotations

import itertools
from collections import Counter
from itertools import permutations

import pytest
from kits.unit.membership_steps import node

from rdzv_plugins.elastic.coordinator.placement import PreviousAssignment, Rules, assign_ranks, choose, size_of
from rdzv_plugins.elastic.keys import Assignment, Member

NEW = PreviousAssignment({})


def nodes(names: str):
    """``a1 b1``: a node of domain a, and one of domain b."""
    return [node(name, domain=name[0]) for name in names.split()]


def after(names: str) -> PreviousAssignment:
    """These have been in the last round."""
    former = enumerate(nodes(names))
    return PreviousAssignment(
        {n.node_id: Assignment(1, at, 9, n.node_id, n.host, n.machine, domain=n.domain) for at, n in former}
    )


@pytest.mark.parametrize(
    ("waiting", "rules", "before", "names"),
    [
        # who comes first, as far as that fits
        ("a1 a2 a3", Rules(1, 4, node_unit=2), "", "a1 a2"),
        ("a1 a2 b1", Rules(1, 4, min_per_domain=2), "", "a1 a2"),
        ("a1 b1 a2 b2 b3", Rules(1, 4, min_per_domain=2), "", "a1 a2 b1 b2"),
        ("a1 b1 b2 b3 a2", Rules(1, 3, min_per_domain=2), "", "b1 b2 b3"),  # of two domains there would be four
        ("a1 a2 b1 b2 c1 c2", Rules(1, 5, min_per_domain=2), "", "a1 a2 b1 b2"),
        ("a1 a2 b1 b2 b3", Rules(1, 8, node_unit=2, min_per_domain=2), "", "a1 a2 b1 b2"),
        ("a1 b1", Rules(1, 4, min_per_domain=2), "", ""),
        # a spare of the same domain comes before one that was there earlier, and of another where there is none
        ("a1 b1 b2 b3 b4 a3", Rules(1, 4), "a1 a2 b1 b2", "a1 a3 b1 b2"),
        ("a1 b1 b2 b3", Rules(1, 4), "a1 a2 b1 b2", "a1 b1 b2 b3"),
        # who was there stays; a domain that has become too small is left out as a whole
        ("c1 c2 c3 c4 a1 a2", Rules(1, 4, min_per_domain=2), "a1 a2", "a1 a2 c1 c2"),
        ("a1 a2 b1", Rules(1, 4, min_per_domain=2), "a1 a2 b1 b2", "a1 a2"),
    ],
)
def test_who_is_in_a_round(waiting: str, rules: Rules, before: str, names: str) -> None:
    chosen = choose(nodes(waiting), after(before), rules)
    assert " ".join(sorted(each.node_id for each in chosen)) == names


def by_trying(counts: tuple[int, ...], rules: Rules) -> int:
    """The size of the largest round of domains with so many nodes."""
    sizes = {0}
    for count in counts:
        some = (0, *range(rules.min_per_domain, count + 1))
        sizes = {size + more for size in sizes for more in some if size + more <= rules.max_nodes}
    return max(size for size in sizes if size % rules.node_unit == 0)


def test_every_small_world():
    """As many as can be; of each domain enough; found by trying all sizes."""
    of_jobs = [
        Rules(1, most, node_unit=unit, min_per_domain=least)
        for most in (4, 6)
        for unit in (1, 2, 3)
        for least in (1, 2, 3)
    ]
    for counts in itertools.product(range(5), repeat=3):
        waiting = nodes(" ".join(f"{d}{n}" for d, count in zip("abc", counts, strict=True) for n in range(count)))
        for rules, former in itertools.product(of_jobs, (NEW, after("a0 a1 b0 b1 c0 c1"))):
            found = choose(waiting, former, rules)
            case = f"{counts} {rules}: {[each.node_id for each in found]}"
            assert len(found) == size_of(waiting, former, rules) == by_trying(counts, rules), case
            assert all(n >= rules.min_per_domain for n in Counter(each.domain for each in found).values()), case


def ranked(*members: Member, former: PreviousAssignment = NEW, order=lambda _: None) -> list[str]:
    return [member.node_id for member in assign_ranks(members, former, order)]


def had(name: str, rank: int, given: int | None = None, machine: str = "") -> Assignment:
    return Assignment(1, rank, 3, name, f"host-{name}", machine or name, node_rank=given)


STAYED = PreviousAssignment({name: had(name, rank) for rank, name in enumerate("abc")})
SHARED = PreviousAssignment({"a": had("a", 0, machine="m"), "b": had("b", 1, machine="m")})
REPLACED = PreviousAssignment({"a": had("a", 0), "b": had("b", 1)})


@pytest.mark.parametrize(
    ("members", "former", "order", "expected"),
    [
        ([node("a"), node("b"), node("c")], NEW, None, "abc"),
        ([node("a"), node("b", serves=True)], NEW, None, "ba"),
        ([node("d"), node("c"), node("b")], STAYED, None, "dbc"),
        ([node("c"), node("b")], STAYED, None, "cb"),  # a rank beyond the size is not kept
        ([node("x"), node("n", machine="a", host="host-a")], REPLACED, None, "nx"),  # another process there takes it
        ([node("n", machine="m", host="host-a"), node("a", machine="m")], SHARED, None, "an"),  # and pushes out nobody
        (
            [node("a"), node("b", 0)],
            PreviousAssignment({"a": had("a", 0)}),
            None,
            "ba",
        ),  # a given rank goes before a kept one
        # a plug-in orders those without another claim
        ([node("a"), node("b"), node("c")], NEW, "cab", "cab"),
        ([node("a"), node("b"), node("c")], NEW, "c", "cab"),
        ([node("a"), node("b"), node("c")], NEW, "x", "abc"),
    ],
)
def test_ranks(members, former, order, expected):
    assert ranked(*members, former=former, order=lambda _: order and list(order)) == list(expected)


def test_given_rank_is_honoured_in_every_order_of_arrival():
    for members in permutations([node("a", 2), node("b", 0), node("c", 1), node("d", serves=True)]):
        assert ranked(*members) == ["b", "c", "a", "d"]


@pytest.mark.parametrize(
    ("given", "ranks"),
    [([3, 0, 2], [2, 0, 1]), ([7, None, 5], [2, 0, 1]), ([None, 3, 2], [0, 2, 1]), ([0, 2, None], [0, 2, 1])],
)
def test_given_ranks_beyond_the_size_move_down_and_keep_their_order(given, ranks):
    names = ranked(*(node(str(number), rank) for number, rank in enumerate(given)))
    assert [names.index(str(number)) for number in range(len(given))] == ranks


def of(name: str, rank: int | None = None, **fields) -> Member:
    return node(name, rank, domain=name[0], **fields)


@pytest.mark.parametrize(
    ("before", "now", "ranks"),
    [
        ("", "a1 b1 a2 b2", "a1 a2 b1 b2"),
        ("a1 a2 b1 b2", "b1 b2 a1 a3", "a1 a3 b1 b2"),  # the spare takes the place of a2
        ("a1 a2 b1 b2", "b1 b2 b3 a1", "a1 b3 b1 b2"),  # all who stay keep theirs
        ("a1 a2 b1 b2", "b1 b2 a1", "a1 b2 b1"),
        ("a1 a2 b1 b2 c1 c2", "a1 a2 c1 c2 d1 d2", "a1 a2 d1 d2 c1 c2"),  # one that comes fills the gap
        ("a1 b1", "a1 b1 c1 a2", "a1 a2 b1 c1"),
    ],
)
def test_ranks_of_a_domain_are_side_by_side(before, now, ranks):
    assert ranked(*map(of, now.split()), former=after(before)) == ranks.split()


@pytest.mark.parametrize(
    ("members", "ranks"),
    [
        ([of("a1", 0), of("b1", 1), of("a2", 2), of("b2", 3)], "a1 b1 a2 b2"),  # a given rank goes before its domain
        ([of("a1", 0), of("b1", 2), of("b2"), of("a2")], "a1 a2 b1 b2"),  # the others are beside it
        # a scheduler's number orders domains, and within them
        ([of(n, rank, rank_moves=True) for n, rank in (("a2", 3), ("b2", 2), ("b1", 0), ("a1", 1))], "b1 b2 a1 a2"),
    ],
)
def test_ranks_and_domains(members: list[Member], ranks: str) -> None:
    assert ranked(*members) == ranks.split()


def test_topology_of_a_plug_in_orders_domains_and_within_them():
    nodes = [of("a1"), of("b1"), of("a2"), of("b2")]
    assert ranked(*nodes, order=lambda _: ["b2", "a2", "b1", "a1"]) == ["b2", "b1", "a2", "a1"]
    assert ranked(node("a"), node("b", 1), order=lambda _: 1 / 0) == ["a", "b"], "it is not asked about one node"
