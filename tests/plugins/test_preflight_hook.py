"""The hook ``rdzv_preflight``: what a plug-in finds decides as the node's own checks do; nonsense is put down to it."""

from __future__ import annotations

from types import ModuleType

import pytest

from rdzv_plugins import NodeCheck, hookimpl
from rdzv_plugins.errors import BrokenPlugin, PluginError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.host.discovery import PluginRecord
from rdzv_plugins.interfaces import Request

REQUEST = Request("static", "none", "", 1, 1, 1, preflight=("plugins",))


def host_with(answer) -> PluginHost:
    plugin = ModuleType("a_plugin")
    plugin.rdzv_preflight = hookimpl(lambda request: answer(request))
    record = PluginRecord("mine", "a_plugin", "some-package", "1.0")
    record.plugin = plugin
    return PluginHost([record])


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda _: None, []),
        (lambda _: NodeCheck("fan", value=3.0), [NodeCheck("fan", value=3.0)]),
        (lambda _: (NodeCheck(f"fan {n}", "warning", "loud") for n in range(2)), ["fan 0", "fan 1"]),
        (lambda request: [NodeCheck(request.preflight[0])], ["plugins"]),
    ],
)
def test_what_it_returns_is_taken(answer, expected):
    found = host_with(answer).preflight(REQUEST)
    assert found == expected or [each.name for each in found] == expected


@pytest.mark.parametrize(
    "answer",
    [
        "all well",
        {"fan": "ok"},
        7,
        ["all well"],
        [None],
        NodeCheck(""),
        NodeCheck("fan", "fine"),
        NodeCheck("fan", value=-1.0),
        NodeCheck("fan", value=float("nan")),
        NodeCheck("fan", value="much"),
    ],
)
def test_anything_else_is_an_error_of_the_plug_in(answer):
    with pytest.raises(BrokenPlugin, match=r"mine.*rdzv_preflight"):
        host_with(lambda _: answer).preflight(REQUEST)


def test_an_exception_is_put_down_to_it_also_from_a_generator():
    def broken(_):
        yield NodeCheck("fan")
        raise OSError("no device")

    def at_once(_):
        raise OSError("no device")

    for each in (broken, at_once):
        with pytest.raises(PluginError, match=r"mine.* raised OSError in rdzv_preflight: no device"):
            host_with(each).preflight(REQUEST)
