"""A sign of life of every node of a round, and when all have given one."""

from __future__ import annotations

import pytest
from kits.unit.membership_steps import node

from rdzv_plugins.elastic.keys import Probe
from rdzv_plugins.elastic.leading.member_watch import Probing

ASKED, ANSWERED = Probe(1, 4), Probe(1, 4, answered=True)


@pytest.mark.parametrize(
    ("newest", "names", "says"),
    [
        # answered when the last has answered; that it is told again is no news
        (
            None,
            "abc",
            [
                ("a", 1, 0, ASKED),
                ("a", 1, 1, None),
                ("b", 0, 1, None),
                ("b", 0, 1, None),
                ("c", 0, 1, ANSWERED),
                ("c", 0, 1, None),
            ],
        ),
        # nobody waits for a lost node
        (None, "ab", [("a", 1, 0, ASKED), ("a", 1, 1, None), ("b", "is lost", 0, ANSWERED), ("b", "is lost", 0, None)]),
        # an old answer does not count
        (
            None,
            "ab",
            [
                ("a", 1, 0, ASKED),
                ("a", 1, 1, None),
                ("b", 0, 0, None),
                ("b", 0, 1, ANSWERED),
                ("a", 2, 1, Probe(2, 4)),
                ("a", 2, 2, None),
                ("b", 0, 1, None),
                ("b", 0, 2, Probe(2, 4, answered=True)),
            ],
        ),
        # one that another leader has begun is begun again, unless it was answered
        (ASKED, "ab", [("a", 1, 1, ASKED), ("b", 0, 1, ANSWERED)]),
        (ANSWERED, "ab", [("a", 1, 1, None), ("a", 2, 1, Probe(2, 4))]),
        # answered at once when all have answered already
        (ASKED, "a", [("a", 1, 1, ANSWERED)]),
    ],
)
def test_what_comes_of_what_a_node_says(
    newest: Probe | None, names: str, says: list[tuple[str, int | str, int, Probe | None]]
) -> None:
    """``says``: who asks which probe and has answered which, and what the leader writes."""
    probing, members = Probing(newest), {name: node(name) for name in names}
    for name, probe, alive, written in says:
        if probe == "is lost":
            members.pop(name, None)
            assert probing.gone(name) == written
            continue
        said = node(name, probe=probe, alive=alive)
        if names:
            members[name] = said
        assert probing.changed(said, lambda: list(members.values()), 4) == written
