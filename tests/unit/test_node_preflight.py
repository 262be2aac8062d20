"""What a node tests of itself, which checks are asked for, and what follows where nodes do not decide together."""

from __future__ import annotations

import os

import pytest

from rdzv_plugins import NodeCheck
from rdzv_plugins.assemble.node_preflight import NodePreflight
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
        ("on", tuple(name for name in NAMES if name != "gloo")),
        ("gloo,disk", ("disk", "gloo")),
        ("gloo:disk", ("disk", "gloo")),
    ],
)
def test_which_checks_are_asked_for(text, expected):
    assert read(text) == expected


def test_an_unknown_check_is_refused_by_name():
    with pytest.raises(UsageError, match=r"--preflight=netwrok: there is no check 'netwrok'.*network"):
        read("netwrok")


def test_a_healthy_node_finds_nothing_broken(tmp_path):
    checks = checks_of(NAMES, [str(tmp_path / "logs" / "below")])
    names = [check.name for check in checks]
    assert len(names) == len(set(names))
    assert {"memory", "memory speed", "/dev/shm", "processors", "processor speed"} <= set(names)
    assert f"disk of {tmp_path / 'logs' / 'below'}" in names
    assert [check for check in checks if check.verdict == "broken"] == []
    assert all(check.value > 0 for check in checks if check.value is not None)
    assert not (tmp_path / "logs").exists()
    assert checks_of(("network", "plugins"), []) == []


def test_a_directory_that_cannot_be_written_is_broken(tmp_path):
    (tmp_path / "file").touch()
    checks = checks_of(("disk",), [str(tmp_path / "file")])
    (broken,) = [check for check in checks if check.verdict == "broken"]
    assert broken.text.startswith(f"nothing can be written to {tmp_path / 'file'}: ")


class Alone:
    """A handler whose nodes decide nothing together."""


def request(*checks: str) -> Request:
    return Request("static", "none", "", 1, 1, 1, preflight=checks)


def test_a_broken_node_ends_where_nobody_else_decides(tmp_path):
    (tmp_path / "file").touch()
    node = NodePreflight(PluginHost([]), request("disk"), [str(tmp_path / "file")])
    with pytest.raises(PreflightFailed, match="this node is broken: disk of") as caught:
        node.before(Alone())
    assert caught.value.exit_code == 83
    NodePreflight(PluginHost([]), request(), [str(tmp_path / "file")]).before(Alone())


def test_what_cannot_be_checked_is_said_once(caplog):
    node = NodePreflight(PluginHost([]), request("store", "network"))
    node.before(Alone())
    node.before(Alone())
    (said,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "backend static does not know who takes part" in said
    assert "store and network cannot be checked" in said


def test_who_decides_together_is_told(tmp_path):
    class Together(Alone):
        told: list[NodeCheck] | None = None

        def note_checks(self, checks):
            self.told = checks

    (tmp_path / "file").touch()
    handler = Together()
    NodePreflight(PluginHost([]), request("disk"), [str(tmp_path / "file")]).before(handler)
    assert handler.told is not None
    assert handler.told[0].verdict == "broken"
    assert os.path.isfile(tmp_path / "file")
