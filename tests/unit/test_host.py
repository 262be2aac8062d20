"""What an installed plug-in may get wrong without stopping the others, checked in this process."""

import logging
import sys
import types
from dataclasses import dataclass

import pytest

from rdzv_plugins import Backend, NodeCheck, Request, hookimpl
from rdzv_plugins.errors import BrokenPlugin, PluginError
from rdzv_plugins.registry import PluginHost, PluginRecord, discovery
from rdzv_plugins.registry.discovery import validate
from rdzv_plugins.registry.report import as_data, as_text

REQUEST = Request("static", "run", "", 1, 1, 1, preflight=("plugins",))
WORKING = """
from rdzv_plugins import Backend, hookimpl

@hookimpl
def rdzv_register_backends():
    return Backend(name="stranger", summary="a stranger's", create=lambda request: None)
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Puts module ``stranger`` and the metadata of a distribution on the path, as an installer does."""

    def install(entry_points, *, source=WORKING, metadata="Metadata-Version: 2.1\nName: dist\nVersion: 3\n"):
        info = tmp_path / "dist-3.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_text(f"[rdzv_plugins]\n{entry_points}\n")
        if metadata:
            (info / "METADATA").write_text(metadata)
        (tmp_path / "stranger.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        return PluginHost.load()

    yield install
    sys.modules.pop("stranger", None)


def plugin(name="stranger", mark=None, **hooks):
    """The record of a plug-in with these hooks, after the check."""
    module = types.ModuleType(name)
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(**(mark or {}))(function))
    record = PluginRecord(name, name, "dist", "3", plugin=module)
    validate(record)
    return record


def backend(**changes):
    return Backend(**{"name": "stranger", "summary": "a stranger's", "create": print} | changes)


@dataclass
class Unresolvable:
    key: "NoSuchType" = 1  # noqa: F821


FUNCTIONS = ("validate", "check", "preflight", "recognise", "status", "health")


@pytest.mark.parametrize(
    ("result", "named"),
    [
        *(("text", "returned str"), ({"name": "x"}, "returned dict"), (None, "returned None"), (7, "returned int")),
        ([backend(), 7], "returned int"),
        *((backend(**{name: None}), name) for name in ("name", "summary", "create")),
        (backend(name=""), "name"),
        (backend(aliases="text"), "aliases"),  # ("text") lacks the comma of a tuple
        (backend(aliases=(None,)), "aliases"),
        (backend(capabilities={"elastic"}), "capabilities"),
        *((backend(options=wrong), "options") for wrong in ({"key": "value"}, int, Unresolvable)),
        *((backend(**{function: "text"}), function) for function in FUNCTIONS),
    ],
)
def test_wrong_result_is_named_by_its_type_and_a_wrong_field_by_its_name(result, named):
    record = plugin(rdzv_register_backends=lambda: result)
    assert named in record.error
    assert "returned" not in named or record.backends == ()
    assert as_text(as_data(PluginHost([record])))


@pytest.mark.parametrize("answer", [["node_rank"], 7, {"node_rank": "1"}, {"endpoint": 29500}, {"colour": "red"}])
def test_wrong_answer_to_a_hook_is_put_down_to_the_plugin(answer):
    host = PluginHost([plugin(rdzv_resolve_request=lambda: answer, rdzv_worker_env=lambda: answer)])
    with pytest.raises(PluginError, match="plug-in 'stranger' of dist 3"):
        host.resolve_request(REQUEST)
    if not isinstance(answer, dict):
        with pytest.raises(PluginError, match="plug-in 'stranger' of dist 3"):
            host.worker_env(REQUEST, {})


def test_resolve_hooks_are_asked_in_order_each_with_what_is_known():
    """As pluggy has it: ``tryfirst``, then the others, then ``trylast``."""
    seen = []

    def resolving(name, **mark):
        def rdzv_resolve_request(request, backend):
            seen.append((name, request.run_id, "run_id" in request.given, backend))
            return {"run_id": name}

        return plugin(name, mark, rdzv_resolve_request=rdzv_resolve_request)

    host = PluginHost([resolving("last", trylast=True), resolving("middle"), resolving("first", tryfirst=True)])
    asked = backend()
    assert host.resolve_request(REQUEST, asked).run_id == "first"
    assert seen == [("first", "run", False, asked), ("middle", "first", True, asked), ("last", "first", True, asked)]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda request: None, []),
        (lambda request: NodeCheck("fan", value=3.0), [NodeCheck("fan", value=3.0)]),
        (lambda request: (NodeCheck(f"fan {n}", "warning", "loud") for n in range(2)), ["fan 0", "fan 1"]),
        (lambda request: [NodeCheck(request.preflight[0])], ["plugins"]),
    ],
)
def test_what_a_plugin_finds_before_the_job_is_taken(answer, expected):
    found = PluginHost([plugin(rdzv_preflight=answer)]).preflight(REQUEST)
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
def test_what_is_no_finding_is_an_error_of_the_plugin(answer):
    with pytest.raises(BrokenPlugin, match=r"stranger.*rdzv_preflight"):
        PluginHost([plugin(rdzv_preflight=lambda: answer)]).preflight(REQUEST)


def test_an_exception_from_preflight_is_put_down_to_the_plugin_also_from_a_generator():
    def broken():
        yield NodeCheck("fan")
        raise OSError("no device")

    def at_once():
        raise OSError("no device")

    for each in (broken, at_once):
        with pytest.raises(PluginError, match=r"stranger.* raised OSError in rdzv_preflight: no device"):
            PluginHost([plugin(rdzv_preflight=each)]).preflight(REQUEST)


@pytest.mark.parametrize(
    ("entry_points", "more", "known"),
    [
        ("stranger = stranger\nsecond = stranger", {}, ("dist", "3")),
        ("stranger = stranger", {"metadata": ""}, ("unknown distribution", "?")),
    ],
)
def test_installed_plugin_is_found_with_its_distribution_and_harms_nobody(installed, entry_points, more, known):
    """Two entry points for one module; a distribution without metadata."""
    host = installed(entry_points, **more)
    record = host.catalog.find("stranger").record
    assert (record.distribution, record.version) == known
    assert host.catalog.find("c10d").record.distribution == "rdzv-plugins"
    assert as_text(as_data(host))


@pytest.mark.parametrize("value", ["stranger:missing", "stranger:nothing", "not a module", "stranger:number", "gone"])
def test_entry_point_that_leads_nowhere_is_told_once_with_what_to_do(installed, caplog, value):
    host = installed(f"stranger = {value}", source="nothing = None\nnumber = 7\n")
    (record,) = host.failed
    assert record.distribution == "dist"
    assert record.error
    assert value != "gone" or "dist" in record.remedy
    host.report_problems("Stranger")
    assert caplog.text == ""
    host.report_problems("another")
    assert f"stranger = {value}" in caplog.text


def test_what_a_plugin_logs_goes_the_way_of_ours(installed, caplog):
    installed("stranger = stranger")
    theirs = logging.getLogger("stranger.part")
    with caplog.at_level(logging.INFO, "rdzv_plugins"):
        theirs.info("waiting for somebody")
    with caplog.at_level(logging.WARNING, "rdzv_plugins"):
        theirs.info("not said")
    assert caplog.messages == ["waiting for somebody"]


def test_plugin_that_imports_torch_is_noted(installed, monkeypatch):
    monkeypatch.setattr(discovery, "SLOW_IMPORT_S", 3600)  # that is another note
    monkeypatch.setitem(sys.modules, "torch", sys)  # put back at the end, whatever was there
    monkeypatch.delitem(sys.modules, "torch")
    host = installed("stranger = stranger", source="import sys; sys.modules['torch'] = sys\n" + WORKING)
    assert host.catalog.find("stranger").record.notes == ["imports torch when it is loaded"]
