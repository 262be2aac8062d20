"""--preflight: what a node finds about itself, and whom a leader leaves out of a round for that."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kits.unit.membership_steps import Leader, node, story

from rdzv_plugins.elastic.coordinator.preflight_gate import judge
from rdzv_plugins.elastic.keys import CheckReport, Member
from rdzv_plugins.errors import PreflightFailed, UsageError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.registry.rendezvous import Rendezvous
from rdzv_plugins.system.node_checks import checks_of
from rdzv_plugins.system.preflight import NAMES, read

FIRE = CheckReport("my device", "broken", "it is on fire")


def nodes(**checks: CheckReport) -> list[Member]:
    """Five nodes, a to e, with these checks; the speed of the others is usual."""
    return [node(name, checks=(checks.get(name, speed(2.0 + number)),)) for number, name in enumerate("abcde")]


def speed(value: float) -> CheckReport:
    return CheckReport("speed", value=value, unit="GB/s")


@pytest.mark.parametrize(
    ("checks", "spares", "left_out", "told", "fatal"),
    [
        ({"b": FIRE}, 1, "b", 0, False),
        ({"b": FIRE}, 0, "", 0, True),
        ({"b": speed(0.9)}, 1, "b", 0, False),
        ({"b": speed(0.9)}, 0, "", 1, False),  # it stays, and is named
        ({"b": speed(1.4)}, 1, "", 0, False),  # by less than the factor
        ({"a": speed(1e300)}, 1, "", 0, False),  # one that claims wonders makes nobody slow
        ({"a": speed(0.9), "b": FIRE}, 1, "b", 1, False),  # broken ones are left out first
        ({"a": FIRE, "b": FIRE}, 1, "a", 0, True),
    ],
)
def test_who_is_left_out(checks: dict[str, CheckReport], spares: int, left_out: str, told: int, fatal: bool) -> None:
    found = judge(nodes(**checks), 3.0, spares)
    assert "".join(found.left_out) == left_out
    assert (len(found.words), bool(found.fatal)) == (told, fatal)
    assert all(f"host-{name} " in why for name, why in found.left_out.items())


def test_two_nodes_are_not_compared() -> None:
    assert judge([node("a", checks=(speed(9),)), node("b", checks=(speed(1),))], 3.0, 1).left_out == {}


def test_a_broken_node_without_a_spare_ends_the_job() -> None:
    leader = Leader(2, 2, preflight_factor=3.0)
    leader.hear(node("a"), node("b", checks=(FIRE,)))
    assert (leader.round.state, leader.round.unfit) == ("failed", True)
    assert "host-b" in leader.round.reason
    assert "host-a" not in leader.round.reason


@pytest.mark.parametrize(
    ("sizes", "steps", "told"),
    [
        ("2:3", "come a b c!, complete, outside c", "1 complete: a b"),  # it ends no round
        # it is waited for when the round is over, as it tests itself again, but not for ever
        ("2:3", "come a b c!, complete, outside c, join b a, healed c, complete", "2 complete: a b c"),
        ("2:3", "come a b c!, complete, join b a, wait 60, complete", "2 complete: a b"),
        ("1:2", "come a, complete, come b!, dial b", "1 complete: a"),
    ],
)
def test_what_a_leader_has_come_to(sizes: str, steps: str, told: str) -> None:
    assert story(sizes, steps, preflight_factor=3.0).partition(", ")[0] == told


def test_the_rest_waits_if_no_round_can_be_formed_of_it() -> None:
    """Of each domain one node is broken, and a round needs two of one."""
    leader = Leader(2, 4, preflight_factor=3.0, last_call=0, min_per_domain=2)
    domains = zip("abcd", "rrss", strict=True)
    out = leader.hear(*(node(name, domain=of, checks=(FIRE,) * (name in "ac")) for name, of in domains))
    assert (leader.round.state, leader.assigned, len(out.notices)) == ("none", {}, 2)
    assert leader.wait(1).notices == (), "it is said once"
    leader.hear(node("e", domain="s"))
    leader.complete()
    assert set(leader.ranks()) == {"d", "e"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("off", ()),
        ("all", NAMES),
        ("on", NAMES),
        ("plugins,disk", ("disk", "plugins")),
        ("plugins:disk", ("disk", "plugins")),
    ],
)
def test_which_checks_are_asked_for(text, expected):
    assert read(text) == expected


@pytest.mark.parametrize("name", ["plugin", "network", "gloo", "store"])
def test_a_check_that_there_is_not_is_refused_by_name(name):
    with pytest.raises(UsageError, match=f"'{name}'"):
        read(f"disk,{name}")


def test_a_healthy_node_finds_nothing_broken(tmp_path):
    checks = checks_of(NAMES, [str(tmp_path / "logs" / "below")])
    names = [check.name for check in checks]
    assert len(names) == len(set(names))
    assert {"memory", "memory speed", "/dev/shm", "processors", "processor speed"} <= set(names)
    assert f"disk of {tmp_path / 'logs' / 'below'}" in names
    assert [check for check in checks if check.verdict == "broken"] == []
    assert all(check.value > 0 for check in checks if check.value is not None)
    assert not (tmp_path / "logs").exists()
    assert checks_of(("plugins",), []) == []


def request(*checks: str) -> Request:
    return Request("static", "none", "", 1, 1, 1, preflight=checks)


def test_a_broken_node_ends_where_nobody_else_decides(tmp_path):
    (tmp_path / "file").touch()
    handler = SimpleNamespace(check_by=lambda checks: False)
    node = Rendezvous(handler, PluginHost([]), request("disk"), directories=[str(tmp_path / "file")])
    with pytest.raises(PreflightFailed, match="this node failed its checks: disk of") as caught:
        node.next_rendezvous()
    assert caught.value.exit_code == 83
