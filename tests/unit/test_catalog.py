"""Names and aliases lead to backends; for every name that leads nowhere the catalog says why."""

import dataclasses
import sys

import msgspec
import pytest

from rdzv_plugins import Backend, Request, ServiceCheck, option
from rdzv_plugins.assemble.create import create_rendezvous, preflight, prepare
from rdzv_plugins.assemble.create import health as health_of
from rdzv_plugins.errors import (
    BrokenPlugin,
    EndpointUnreachable,
    MissingDependency,
    NameConflict,
    NotProvided,
    UnknownBackend,
    UsageError,
)
from rdzv_plugins.host import Catalog, PluginHost, PluginRecord
from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.host.report import as_data
from rdzv_plugins.options import WorkerStoreOptions

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


def refusal(kind, records, name):
    with pytest.raises(kind) as caught:
        Catalog(records).find(name)
    return caught.value


@pytest.mark.parametrize("name", ["toy-file", "toy_file", "Toy.File", "flat-file", "FLAT_FILE"])
def test_name_and_alias_are_found_whatever_their_case_and_separators(name):
    assert Catalog([record("other", backend("other")), TOY]).find(name).record is TOY


@pytest.mark.parametrize("second", [backend("Same"), backend("else", "same")])
def test_two_owners_of_a_name_are_both_named_and_their_other_names_are_found(second):
    records = [record("one", backend("same", "first")), record("two", second)]
    message = str(refusal(NameConflict, records, "same"))
    assert "dist-one 1.0 (one_module)" in message
    assert "dist-two 1.0 (two_module)" in message
    assert Catalog(records).conflicts() == [message]
    assert Catalog(records).find("first").record.name == "one"


CAUSE, ABSENT = ValueError("why"), ModuleNotFoundError("No module named 'client'", name="client")
BROKEN = record("toy", error="raised ValueError at import: why", cause=CAUSE, remedy="Repair it.")
LACKING = record("toy", error="needs module 'client'", cause=ABSENT, remedy="Install it: pip install client")


@pytest.mark.parametrize(
    ("records", "name", "kind", "said", "remedy"),
    [
        ([TOY, record("static", backend("static"))], "statics", UnknownBackend, "did you mean 'static'?", "toy-file"),
        ([TOY], "etcd_v2", NotProvided, "'etcd_v2' is not provided", "--rdzv-backend=etcd:"),
        ([BROKEN], "Toy", BrokenPlugin, f"{NAMED} (entry point toy = toy_module) raised ValueError", "Repair it."),
        ([LACKING], "toy", MissingDependency, "client", "Install it: pip install client"),
        ([record("toy", disabled=True)], "toy", UnknownBackend, "is switched off", ""),
    ],
)
def test_name_that_leads_nowhere_is_refused_with_what_is_known_of_it(records, name, kind, said, remedy):
    error = refusal(kind, records, name)
    assert said in str(error)
    assert remedy in error.remedy
    assert error.__cause__ is records[0].cause


def test_working_backend_wins_over_a_broken_plugin_of_that_name():
    records = [record("toy", error="failed", distribution="broken"), record("other", backend("toy"))]
    assert Catalog(records).find("toy").record.name == "other"


def raises(error):
    def function(*_):
        raise error

    return function


def imports_what_is_absent(*_):
    import rdzv_absent_client  # noqa: F401


def preparing(**fields):
    return prepare(toy(**fields), REQUEST)


def creating(create):
    return create_rendezvous(HOST, toy(create=create), REQUEST)


def looking_ahead(function):
    return preflight(HOST, toy(preflight=function), REQUEST, None)


@pytest.mark.parametrize(
    ("ask", "kind", "said"),
    [
        (lambda: preparing(validate=raises(UsageError("no"))), UsageError, "^no$"),
        (lambda: preparing(validate=raises(KeyError("slot"))), BrokenPlugin, f"{NAMED} .* raised KeyError while check"),
        (lambda: preparing(check=raises(MissingDependency("no driver"))), MissingDependency, "^no driver$"),
        (lambda: creating(raises(KeyError("slot"))), BrokenPlugin, f"{NAMED} .* raised KeyError when it was"),
        (lambda: creating(imports_what_is_absent), MissingDependency, "'rdzv_absent_client'"),
        (lambda: looking_ahead(raises(KeyError("slot"))), BrokenPlugin, f"{NAMED} .* raised KeyError in its preflight"),
        (lambda: looking_ahead(imports_what_is_absent), MissingDependency, "'rdzv_absent_client'"),
    ],
)
def test_what_a_backend_refuses_on_purpose_passes_and_other_errors_are_put_down_to_its_plugin(ask, kind, said):
    with pytest.raises(kind, match=said) as caught:
        ask()
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


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda: ["fine"], BrokenPlugin),
        (lambda: [ServiceCheck("room", "", "fine")], BrokenPlugin),
        (lambda: [ServiceCheck("", "here")], BrokenPlugin),
        (lambda: [ServiceCheck("room", None)], BrokenPlugin),
        (lambda: 1 / 0, BrokenPlugin),
        (raises(TimeoutError("no answer")), EndpointUnreachable),
    ],
)
def test_health_that_is_no_service_checks_is_put_down_to_the_plugin(answer, kind):
    with pytest.raises(kind, match="no answer" if kind is EndpointUnreachable else NAMED):
        health_of(HOST, toy(health=lambda *_: answer()), REQUEST, 3.0)


def test_health_is_service_checks():
    seen = []
    told = toy(health=lambda request, timeout: seen.append((request.options, timeout)) or iter(GOOD))
    assert health_of(HOST, told, REQUEST, 3.0) == GOOD
    assert seen == [(REQUEST.options, 3.0)]
    assert health_of(HOST, toy(health=None), REQUEST, 3.0) is None


def test_workers_store_that_a_strangers_options_name_is_the_rendezvous_own(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Options(WorkerStoreOptions):
        path: str = option("x", help="The stranger's own.")

    class State:
        name = "toy"

        def get_state(self):
            return None

        def set_state(self, state, token=None):
            return None

    made = []
    monkeypatch.setattr("rdzv_plugins.dynamic.handler.dynamic_handler", lambda *arguments: made.append(arguments))
    entry = toy(create=lambda request: State(), options=Options)
    conf = {"store": "parallel", "store_threads": "3", "worker_ports": "29501-29510", "path": "y"}
    create_rendezvous(HOST, entry, prepare(entry, dataclasses.replace(REQUEST, conf=conf)))
    [(_, _, settings)] = made
    assert (settings.store, settings.store_threads, str(settings.worker_ports)) == ("parallel", 3, "29501-29510")
