"""What a node tests of itself, which checks are asked for, and what follows where nodes do not decide together."""

from __future__ import annotations

import pytest

from rdzv_plugins.assemble.plugin_handler import AdaptedHandler
from rdzv_plugins.assemble.rendezvous import NodePreflight
from rdzv_plugins.errors import PreflightFailed, UsageError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Request
from rdzv_plugins.preflight.checks import NAMES, read
from rdzv_plugins.preflight.own_node import checks_of


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


def test_a_directory_that_cannot_be_written_is_broken(tmp_path):
    (tmp_path / "file").touch()
    checks = checks_of(("disk",), [str(tmp_path / "file")])
    (broken,) = [check for check in checks if check.verdict == "broken"]
    assert broken.text.startswith(f"nothing can be written to {tmp_path / 'file'}: ")


def request(*checks: str) -> Request:
    return Request("static", "none", "", 1, 1, 1, preflight=checks)


def test_a_broken_node_ends_where_nobody_else_decides(tmp_path):
    (tmp_path / "file").touch()
    node = NodePreflight(PluginHost([]), request("disk"), [str(tmp_path / "file")])
    with pytest.raises(PreflightFailed, match="this node is broken: disk of") as caught:
        node.before(AdaptedHandler(None))
    assert caught.value.exit_code == 83
