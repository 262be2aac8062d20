"""What an installed plug-in may get wrong without stopping the others, checked in this process."""

import logging
import sys
import types
from dataclasses import dataclass

import pytest

from rdzv_plugins import Backend, Request, hookimpl
from rdzv_plugins.errors import PluginError
from rdzv_plugins.host import PluginHost, PluginRecord, discovery
from rdzv_plugins.host.report import as_data, as_text
from rdzv_plugins.host.validation import Validator

REQUEST = Request("static", "run", "", 1, 1, 1)
WORKING = """
from rdzv_plugins import Backend, Request, hookimpl
from rdzv_plugins.errors import PluginError

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

    yield install
    sys.modules.pop("stranger", None)


def test_what_a_plugin_logs_goes_the_way_of_ours(installed, caplog):
    installed("stranger = stranger")
    PluginHost.load()
    theirs = logging.getLogger("stranger.part")
    with caplog.at_level(logging.INFO, "rdzv_plugins"):
        theirs.info("waiting for somebody")
    assert [record.name for record in caplog.records] == ["stranger.part"]
    with caplog.at_level(logging.WARNING, "rdzv_plugins"):
        theirs.info("not said")
    assert "not said" not in caplog.text


def record_of(result):
    """The record of a plug-in whose hook returns ``result``, after the check."""
    plugin = types.ModuleType("stranger")
    plugin.rdzv_register_backends = hookimpl(lambda: result)
    record = PluginRecord("stranger", "stranger", "dist", "3", plugin=plugin)
    Validator().validate(record)
    return record


def host_with(**hooks):
    """A host with one plug-in that has these hooks."""
    plugin = types.ModuleType("stranger")
    for name, function in hooks.items():
        setattr(plugin, name, hookimpl(function))
    record = PluginRecord("stranger", "stranger", "dist", "3", plugin=plugin)
    Validator().validate(record)
    assert not record.error
    return PluginHost([record])


def backend(**changes):
    return Backend(**{"name": "stranger", "summary": "a stranger's", "create": print} | changes)


@dataclass
class Unresolvable:
    key: "NoSuchType" = 1  # noqa: F821


def test_list_of_backends_is_accepted():
    assert [b.name for b in record_of([backend(), backend(name="second")]).backends] == ["stranger", "second"]


def test_generator_of_backends_is_accepted():
    assert [b.name for b in record_of(backend(name=n) for n in ("a", "b")).backends] == ["a", "b"]


@pytest.mark.parametrize(
    ("result", "named"), [("text", "str"), ({"name": "x"}, "dict"), ([backend(), 7], "int"), (None, "None"), (7, "int")]
)
def test_wrong_result_is_named_by_its_type(result, named):
    record = record_of(result)
    assert f"returned {named}" in record.error
    assert record.backends == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", None),
        ("name", ""),
        ("summary", None),
        ("create", None),
        ("aliases", "text"),  # ("text") lacks the comma of a tuple
        ("aliases", (None,)),
        ("capabilities", {"elastic"}),
        ("options", {"key": "value"}),
        ("options", int),
        ("options", Unresolvable),
        ("validate", "text"),
        ("check", "text"),
        ("preflight", "text"),
        ("recognise", "text"),
        ("status", "text"),
        ("health", "text"),
    ],
)
def test_wrong_field_of_a_backend_is_named(field, value):
    record = record_of(backend(**{field: value}))
    assert field in record.error
    assert as_text(as_data(PluginHost([record])))


def test_plugin_without_backends_is_accepted():
    assert host_with(rdzv_shutdown=lambda: None).catalog.entries() == []


@pytest.mark.parametrize("answer", [["node_rank"], 7, {"node_rank": "1"}, {"endpoint": 29500}, {"colour": "red"}])
def test_wrong_answer_to_the_resolve_hook_is_put_down_to_the_plugin(answer):
    with pytest.raises(PluginError, match="plug-in 'stranger' of dist 3"):
        host_with(rdzv_resolve_request=lambda: answer).resolve_request(REQUEST)


def test_resolve_hook_that_knows_nothing_changes_nothing():
    assert host_with(rdzv_resolve_request=lambda: None).resolve_request(REQUEST) is REQUEST


def test_wrong_answer_to_the_worker_env_hook_is_put_down_to_the_plugin():
    with pytest.raises(PluginError, match="plug-in 'stranger' of dist 3"):
        host_with(rdzv_worker_env=lambda: ["KEY=value"]).worker_env(REQUEST, {})


def test_installed_plugin_is_found_with_its_distribution(installed):
    installed("stranger = stranger")
    record = PluginHost.load().catalog.find("stranger").record
    assert (record.distribution, record.version) == ("dist", "3")


def test_two_entry_points_for_one_module_harm_nobody(installed):
    installed("stranger = stranger\nsecond = stranger")
    host = PluginHost.load()
    assert host.catalog.find("c10d").record.distribution == "rdzv-plugins"
    assert host.catalog.find("stranger").record.distribution == "dist"


def test_distribution_without_metadata_harms_nobody(installed):
    installed("stranger = stranger", metadata="")
    host = PluginHost.load()
    assert host.catalog.find("c10d").record.distribution == "rdzv-plugins"
    assert as_text(as_data(host))


@pytest.mark.parametrize("value", ["stranger:missing", "stranger:nothing", "not a module", "stranger:number"])
def test_entry_point_that_leads_nowhere_is_reported(installed, value):
    installed(f"stranger = {value}", source="nothing = None\nnumber = 7\n")
    (record,) = PluginHost.load().failed
    assert record.distribution == "dist"
    assert record.error


def test_error_text_is_one_line(installed):
    installed("stranger = stranger", source="raise ValueError('one\\ntwo\\n\\nthree')")
    (record,) = PluginHost.load().failed
    assert record.error == "raised ValueError at import: one two three"


def test_module_of_the_entry_point_that_is_gone_is_told_once_with_what_to_do(installed, caplog):
    installed("gone = gone_module")
    host = PluginHost.load()
    (record,) = host.failed
    assert "gone_module" in record.error
    assert "dist" in record.remedy
    host.report_problems("Gone")
    assert caplog.text == ""
    host.report_problems("another")
    assert "gone = gone_module" in caplog.text


def test_import_error_inside_the_plugins_own_package_is_not_a_missing_dependency(installed):
    installed("stranger = stranger", source="import stranger.part")
    (record,) = PluginHost.load().failed
    assert record.error.startswith("cannot be imported: ")
    assert record.remedy == ""


def test_plugin_that_imports_torch_is_noted(installed, monkeypatch):
    monkeypatch.setattr(discovery, "SLOW_IMPORT_S", 3600)  # that is another note
    monkeypatch.setitem(sys.modules, "torch", sys)  # put back at the end, whatever was there
    monkeypatch.delitem(sys.modules, "torch")
    installed("stranger = stranger", source="import sys; sys.modules['torch'] = sys\n" + WORKING)
    record = PluginHost.load().catalog.find("stranger").record
    assert record.notes == ["imports torch when it is loaded"]


def test_waiting_for_a_processor_while_the_time_is_read_is_in_both_numbers_or_in_none(monkeypatch):
    waited = iter([1.0, 4.0, 4.0, 4.0])
    monkeypatch.setattr(discovery, "_held_up", lambda: next(waited))
    monkeypatch.setattr(discovery, "time", types.SimpleNamespace(perf_counter=lambda: 10.0))
    assert discovery._own_time() == 6.0


def test_resolve_hooks_are_asked_in_order_each_with_what_is_known():
    """As pluggy has it: ``tryfirst``, then the others, then ``trylast``."""
    seen = []

    def plugin(name, **mark):
        def rdzv_resolve_request(request, backend):
            seen.append((name, request.run_id, "run_id" in request.given, backend))
            return {"run_id": name}

        module = types.ModuleType(name)
        module.rdzv_resolve_request = hookimpl(**mark)(rdzv_resolve_request)
        record = PluginRecord(name, name, "dist", "3", plugin=module)
        Validator().validate(record)
        return record

    records = [plugin("last", trylast=True), plugin("middle"), plugin("first", tryfirst=True)]
    asked = backend()
    assert PluginHost(records).resolve_request(REQUEST, asked).run_id == "first"
    assert seen == [("first", "run", False, asked), ("middle", "first", True, asked), ("last", "first", True, asked)]


def test_resolve_hook_is_told_the_backend_that_is_asked_for():
    told = []
    provides = host_with(
        rdzv_register_backends=lambda: backend(name="static"),
        rdzv_resolve_request=lambda backend: told.append(backend),
    )
    provides.resolve_request(REQUEST)
    provides.resolve_request(Request("missing", "run", "", 1, 1, 1))
    assert [each and each.name for each in told] == ["static", None]
