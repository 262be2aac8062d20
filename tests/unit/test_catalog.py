"""Names and aliases lead to backends; for every name that leads nowhere the catalog says why."""

import dataclasses
import sys
from types import SimpleNamespace

import msgspec
import pytest

from rdzv_plugins import Backend, Request, ServiceCheck, option
from rdzv_plugins.errors import (
    BrokenPlugin,
    EndpointUnreachable,
    MissingDependency,
    NameConflict,
    NotProvided,
    UnknownBackend,
    UsageError,
)
from rdzv_plugins.options import WorkerStoreOptions
from rdzv_plugins.registry import Catalog, PluginHost, PluginRecord
from rdzv_plugins.registry.catalog import Entry
from rdzv_plugins.registry.create import create_rendezvous, preflight, prepare
from rdzv_plugins.registry.create import health as health_of
from rdzv_plugins.registry.report import as_data

REQUEST = Request("toy", "run", "", 1, 1, 1)
HOST = PluginHost([])
NAMED = "plug-in 'toy' of dist-toy 1.0"


def record(name, *backends, distribution=None, **state):
    found = PluginRecord(name, f"{name}_module", distribution or f"dist-{name}", "1.0", backends=backends)
    return msgspec.structs.replace(found, **state)


def backend(name, *aliases, create=print, **fields):
    return Backend(name=name, aliases=aliases, summary=f"the {name}", create=create, **fields)


TOY = record("toy", backend("toy-file", "flat_file"))


def toy(**fields):
    return Entry(backend("toy", **fields), TOY)


def test_name_and_alias_are_found_whatever_their_case_and_separators():
    for name in ("toy-file", "toy_file", "Toy.File", "flat-file", "FLAT_FILE"):
        assert Catalog([record("other", backend("other")), TOY]).find(name).record is TOY
    broken = record("toy-file", error="failed", distribution="broken")
    assert Catalog([broken, TOY]).find("toy-file").record is TOY, "one that works wins over a broken one of that name"


@pytest.mark.parametrize("second", [backend("Same"), backend("else", "same")])
def test_two_owners_of_a_name_are_both_named_and_their_other_names_are_found(second):
    catalog = Catalog([record("one", backend("same", "first")), record("two", second)])
    with pytest.raises(NameConflict, match=r"dist-one 1.0 \(one_module\) and dist-two 1.0 \(two_module\)") as caught:
        catalog.find("same")
    assert catalog.conflicts() == [str(caught.value)]
    assert catalog.find("first").record.name == "one"


CAUSE, ABSENT = ValueError("why"), ModuleNotFoundError("No module named 'client'", name="client")
BROKEN = record("toy", error="raised ValueError at import: why", cause=CAUSE, remedy="Repair it.")
LACKING = record("toy", error="needs module 'client'", cause=ABSENT, remedy="Install it: pip install client")


@pytest.mark.parametrize(
    ("records", "name", "kind", "said", "remedy"),
    [
        ([TOY, record("static", backend("static"))], "statics", UnknownBackend, "did you mean 'static'?", "toy-file"),
        ([TOY], "etcd_v2", NotProvided, "'etcd_v2' is not provided", "--rdzv-backend=etcd "),
        ([BROKEN], "Toy", BrokenPlugin, f"{NAMED} (entry point toy = toy_module) raised ValueError", "Repair it."),
        ([LACKING], "toy", MissingDependency, "client", "Install it: pip install client"),
        ([record("toy", disabled=True)], "toy", UnknownBackend, "is disabled", ""),
    ],
)
def test_name_that_leads_nowhere_is_refused_with_what_is_known_of_it(records, name, kind, said, remedy):
    with pytest.raises(kind) as caught:
        Catalog(records).find(name)
    assert said in str(caught.value)
    assert remedy in caught.value.remedy
    assert caught.value.__cause__ is records[0].cause


def raises(error):
    def function(*_):
        raise error

    return function


def imports_what_is_absent(*_):
    import rdzv_absent_client  # noqa: F401


@pytest.mark.parametrize(
    ("fields", "kind", "said"),
    [
        ({"validate": raises(UsageError("no"))}, UsageError, "^no$"),
        ({"validate": raises(KeyError("slot"))}, BrokenPlugin, f"{NAMED} .* raised KeyError while check"),
        ({"check": raises(MissingDependency("no driver"))}, MissingDependency, "^no driver$"),
        ({"create": raises(KeyError("slot"))}, BrokenPlugin, f"{NAMED} .* raised KeyError when it was"),
        ({"create": imports_what_is_absent}, MissingDependency, "'rdzv_absent_client'"),
        ({"preflight": raises(KeyError("slot"))}, BrokenPlugin, f"{NAMED} .* raised KeyError in its preflight"),
        ({"preflight": imports_what_is_absent}, MissingDependency, "'rdzv_absent_client'"),
    ],
)
def test_what_a_backend_refuses_on_purpose_passes_and_other_errors_are_put_down_to_its_plugin(fields, kind, said):
    def go_through_all() -> None:
        entry = toy(**fields)
        prepare(entry, REQUEST)
        preflight(HOST, entry, REQUEST, None)
        create_rendezvous(HOST, entry, REQUEST)

    with pytest.raises(kind, match=said) as caught:
        go_through_all()
    if "absent" in said:
        assert caught.value.remedy == "Install it: pip install rdzv_absent_client"
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    if kind is BrokenPlugin:
        assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("imports", [("rdzv_absent_client",), ("json", "rdzv_absent_client.part"), ("json.absent",)])
def test_import_that_is_declared_and_missing_is_said_before_a_launch_goes_on(imports):
    lacking = toy(imports=imports, install="apt-get install client")
    with pytest.raises(MissingDependency, match=imports[-1]) as caught:
        prepare(lacking, REQUEST)
    assert caught.value.remedy == "Install it: apt-get install client"
    (listed,) = as_data(PluginHost([record("toy", lacking.backend)]))["backends"]
    assert imports[-1] in listed["unusable"]["reason"]
    assert listed["unusable"]["remedy"] == caught.value.remedy


def test_import_that_is_declared_and_there_is_not_imported():
    there = toy(imports=("json", "antigravity", __name__))
    prepare(there, REQUEST)
    assert "antigravity" not in sys.modules
    (listed,) = as_data(PluginHost([record("toy", there.backend)]))["backends"]
    assert listed["unusable"] is None


GOOD = [ServiceCheck("room", "5 MiB left", "warning", "Make some.")]
NO_CHECKS = [["fine"], [ServiceCheck("room", "", "fine")], [ServiceCheck("", "here")], [ServiceCheck("room", None)]]


def test_health_is_service_checks_and_what_is_none_is_put_down_to_the_plugin():
    asked = []
    told = toy(health=lambda request, timeout: asked.append((request.options, timeout)) or iter(GOOD))
    assert health_of(HOST, told, REQUEST, 3.0) == GOOD
    assert asked == [(REQUEST.options, 3.0)]
    assert health_of(HOST, toy(health=None), REQUEST, 3.0) is None
    for answer in [*((lambda *_, found=found: found) for found in NO_CHECKS), lambda *_: 1 / 0]:
        with pytest.raises(BrokenPlugin, match=NAMED):
            health_of(HOST, toy(health=answer), REQUEST, 3.0)
    with pytest.raises(EndpointUnreachable, match="no answer"):
        health_of(HOST, toy(health=raises(TimeoutError("no answer"))), REQUEST, 3.0)


def test_workers_store_that_a_strangers_options_name_is_the_rendezvous_own(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Options(WorkerStoreOptions):
        path: str = option("x", help="The stranger's own.")

    state = SimpleNamespace(name="toy", get_state=lambda: None, set_state=lambda state, token=None: None)
    made = []
    monkeypatch.setattr("rdzv_plugins.dynamic.handler.dynamic_handler", lambda *arguments: made.append(arguments))
    entry = toy(create=lambda request: state, options=Options)
    conf = {"store": "parallel", "store_threads": "3", "worker_ports": "29501-29510", "path": "y"}
    create_rendezvous(HOST, entry, prepare(entry, dataclasses.replace(REQUEST, conf=conf)))
    [(_, _, settings)] = made
    assert (settings.store, settings.store_threads, str(settings.worker_ports)) == ("parallel", 3, "29501-29510")
