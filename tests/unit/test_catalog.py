"""Names and aliases lead to backends; for every name that leads nowhere the catalog says why."""

import contextlib
import dataclasses
import sys

import msgspec
import pytest

from rdzv_plugins import Backend, Request, ServiceCheck, option
from rdzv_plugins.assemble.create import create_handler, preflight, prepare
from rdzv_plugins.assemble.create import health as health_of
from rdzv_plugins.errors import (
    BrokenPlugin,
    EndpointUnreachable,
    MissingDependency,
    NameConflict,
    NotProvided,
    OptionError,
    UnknownBackend,
    UsageError,
)
from rdzv_plugins.host import Catalog, PluginHost, PluginRecord
from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.host.report import as_data
from rdzv_plugins.options import WorkerStoreOptions

REQUEST = Request("toy", "run", "", 1, 1, 1)


def record(name, *backends, distribution=None, **state):
    found = PluginRecord(name, f"{name}_module", distribution or f"dist-{name}", "1.0", backends=backends)
    return msgspec.structs.replace(found, **state)


def backend(name, *aliases, create=print, **fields):
    return Backend(name=name, aliases=aliases, summary=f"the {name}", create=create, **fields)


def refusal(kind, records, name):
    with pytest.raises(kind) as caught:
        Catalog(records).find(name)
    return caught.value


TOY = record("toy", backend("toy-file", "flat_file"))


@pytest.mark.parametrize("name", ["toy-file", "toy_file", "Toy.File", "flat-file", "FLAT_FILE"])
def test_name_and_alias_are_found_whatever_their_case_and_separators(name):
    assert Catalog([record("other", backend("other")), TOY]).find(name).record is TOY


def test_alias_that_differs_from_the_name_in_separators_only_is_no_conflict():
    catalog = Catalog([record("toy", backend("toy-file", "toy_file"))])
    assert catalog.conflicts() == []
    assert catalog.find("toy_file").backend.name == "toy-file"


def test_entries_are_in_the_order_of_the_plugins():
    catalog = Catalog([record("b", backend("b1"), backend("b2")), record("a", backend("a"))])
    assert [entry.backend.name for entry in catalog.entries()] == ["b1", "b2", "a"]


@pytest.mark.parametrize("second", [backend("Same"), backend("else", "same")])
def test_two_owners_of_a_name_are_both_named(second):
    records = [record("one", backend("same")), record("two", second)]
    message = str(refusal(NameConflict, records, "same"))
    assert "dist-one 1.0 (one_module)" in message
    assert "dist-two 1.0 (two_module)" in message
    assert Catalog(records).conflicts() == [message]


def test_conflict_leaves_the_other_names_alone():
    records = [record("one", backend("same", "first")), record("two", backend("same"))]
    assert Catalog(records).find("first").record.name == "one"


def test_unknown_name_gets_the_nearest_and_the_list():
    error = refusal(UnknownBackend, [TOY, record("static", backend("static"))], "statics")
    assert str(error) == "there is no rendezvous backend 'statics'; did you mean 'static'?"
    assert "toy-file" in error.remedy


def test_unknown_name_far_from_all_gets_no_guess():
    assert "did you mean" not in str(refusal(UnknownBackend, [TOY], "zzz"))


def test_backend_that_is_not_to_come_says_why_and_what_to_use():
    error = refusal(NotProvided, [TOY], "etcd_v2")
    assert "'etcd_v2' is not provided: it speaks etcd's v2 API" in str(error)
    assert "--rdzv-backend=etcd:" in error.remedy


def test_broken_plugin_is_named_with_its_cause_chained():
    cause = ValueError("why")
    broken = record("toy", error="raised ValueError at import: why", cause=cause, remedy="Repair it.")
    error = refusal(BrokenPlugin, [broken], "Toy")
    assert "plug-in 'toy' of dist-toy 1.0 (entry point toy = toy_module) raised ValueError at import: why" in str(error)
    assert error.remedy == "Repair it."
    assert error.__cause__ is cause


def test_plugin_whose_dependency_is_missing_is_told_apart():
    cause = ModuleNotFoundError("No module named 'client'", name="client")
    broken = record("toy", error="needs module 'client'", cause=cause, remedy="Install it: pip install client")
    error = refusal(MissingDependency, [broken], "toy")
    assert error.remedy == "Install it: pip install client"
    assert error.__cause__ is cause


def test_plugin_that_is_switched_off_is_told_apart():
    assert "is switched off" in str(refusal(UnknownBackend, [record("toy", disabled=True)], "toy"))


def test_working_backend_wins_over_a_broken_plugin_of_that_name():
    records = [record("toy", error="failed", distribution="broken"), record("other", backend("toy"))]
    assert Catalog(records).find("toy").record.name == "other"


def test_preparing_refuses_every_option_of_a_backend_that_has_none():
    with pytest.raises(OptionError, match="backend 'toy' has no option 'key'"):
        prepare(Entry(backend("toy"), TOY), dataclasses.replace(REQUEST, conf={"key": "1"}))


def test_preparing_passes_on_what_the_backend_refuses_on_purpose():
    def validate(request):
        raise UsageError("no")

    with pytest.raises(UsageError, match=r"^no$"):
        prepare(Entry(backend("toy", validate=validate), TOY), REQUEST)


def test_error_in_a_backends_check_is_put_down_to_its_plugin():
    def validate(request):
        raise KeyError("slot")

    with pytest.raises(BrokenPlugin, match=r"plug-in 'toy' of dist-toy 1.0 .* raised KeyError while checking"):
        prepare(Entry(backend("toy", validate=validate), TOY), REQUEST)


def test_error_in_a_backends_creation_is_put_down_to_its_plugin():
    def create(request):
        raise KeyError("slot")

    with pytest.raises(BrokenPlugin, match=r"plug-in 'toy' of dist-toy 1.0 .* raised KeyError when it was") as caught:
        create_handler(PluginHost([]), Entry(backend("toy", create=create), TOY), REQUEST)
    assert isinstance(caught.value.__cause__, KeyError)


def test_module_that_is_missing_at_creation_gets_the_install_command():
    def create(request):
        import rdzv_absent_client  # noqa: F401

    with pytest.raises(MissingDependency) as caught:
        create_handler(PluginHost([]), Entry(backend("toy", create=create), TOY), REQUEST)
    assert caught.value.remedy == "Install it: pip install rdzv_absent_client"
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_what_an_installation_lacks_is_said_before_a_launch_goes_on():
    def check():
        raise MissingDependency("no driver", remedy="Install the driver.")

    with pytest.raises(MissingDependency, match=r"^no driver$"):
        prepare(Entry(backend("toy", check=check), TOY), REQUEST)


@pytest.mark.parametrize("imports", [("rdzv_absent_client",), ("json", "rdzv_absent_client.part"), ("json.absent",)])
def test_import_that_is_declared_and_missing_is_said_before_a_launch_goes_on(imports):
    lacking = Entry(backend("toy", imports=imports, install="apt-get install client"), TOY)
    with pytest.raises(MissingDependency, match=imports[-1]) as caught:
        prepare(lacking, REQUEST)
    assert caught.value.remedy == "Install it: apt-get install client"
    (listed,) = as_data(PluginHost([record("toy", lacking.backend)]))["backends"]
    assert imports[-1] in listed["unusable"]["reason"]
    assert listed["unusable"]["remedy"] == caught.value.remedy


def test_import_that_is_declared_and_there_is_not_imported():
    there = Entry(backend("toy", imports=("json", "antigravity", __name__)), TOY)
    prepare(there, REQUEST)
    assert "antigravity" not in sys.modules
    (listed,) = as_data(PluginHost([record("toy", there.backend)]))["backends"]
    assert listed["unusable"] is None


def test_preflight_gets_what_it_may_hold_and_its_errors_are_put_down_to_the_plugin():
    def wrong(request, held):
        raise KeyError("slot")

    def missing(request, held):
        import rdzv_absent_client  # noqa: F401

    closed = []
    with contextlib.ExitStack() as held:
        there = backend("toy", preflight=lambda request, held: held.callback(closed.append, request) and "it is there")
        assert preflight(PluginHost([]), Entry(there, TOY), REQUEST, held) == "it is there"
        assert preflight(PluginHost([]), Entry(backend("toy"), TOY), REQUEST, held) is None
        with pytest.raises(BrokenPlugin, match=r"plug-in 'toy' of dist-toy 1.0 .* raised KeyError in its preflight"):
            preflight(PluginHost([]), Entry(backend("toy", preflight=wrong), TOY), REQUEST, held)
        with pytest.raises(MissingDependency, match="needs module 'rdzv_absent_client'"):
            preflight(PluginHost([]), Entry(backend("toy", preflight=missing), TOY), REQUEST, held)
        assert not closed
    assert closed == [REQUEST]


def test_health_is_service_checks_and_anything_else_is_put_down_to_the_plugin():
    def asked(health):
        return health_of(PluginHost([]), Entry(backend("toy", health=health), TOY), REQUEST, 3.0)

    seen = []
    good = [ServiceCheck("room", "5 MiB left", "warning", "Make some.")]
    assert asked(lambda request, timeout: seen.append((request.options, timeout)) or iter(good)) == good
    assert seen == [(REQUEST.options, 3.0)]
    assert asked(None) is None
    strange = ["fine"], [ServiceCheck("room", "", "fine")], [ServiceCheck("", "here")], [ServiceCheck("room", None)]
    for wrong in strange:
        with pytest.raises(BrokenPlugin, match=r"plug-in 'toy' of dist-toy 1.0 .* says of the health of its service"):
            asked(lambda request, timeout, wrong=wrong: wrong)

    def slow(request, timeout):
        raise TimeoutError("no answer")

    with pytest.raises(EndpointUnreachable, match="has not told in time how it is: no answer"):
        asked(slow)
    with pytest.raises(BrokenPlugin, match="raised ZeroDivisionError when it was asked for the health"):
        asked(lambda request, timeout: 1 / 0)


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
    entry = Entry(backend("toy", create=lambda request: State(), options=Options), TOY)
    conf = {"store": "parallel", "store_threads": "3", "worker_ports": "29501-29510", "path": "y"}
    create_handler(PluginHost([]), entry, prepare(entry, dataclasses.replace(REQUEST, conf=conf)))
    [(_, _, settings)] = made
    assert (settings.store, settings.store_threads, str(settings.worker_ports)) == ("parallel", 3, "29501-29510")


@pytest.mark.parametrize("store", ["torch", "parallel"])
def test_native_part_is_asked_for_before_anything_starts(monkeypatch, store):
    monkeypatch.setitem(sys.modules, "rdzv_plugins.kvstore._native", None)  # as where it could not be compiled
    monkeypatch.delattr("rdzv_plugins.kvstore._native", raising=False)
    entry = Entry(backend("toy", options=WorkerStoreOptions), TOY)
    request = dataclasses.replace(REQUEST, conf={"store": store})
    if store == "torch":
        assert prepare(entry, request).options.store == "torch"
        return
    with pytest.raises(MissingDependency, match="native store is not part of this installation") as caught:
        prepare(entry, request)
    assert caught.value.remedy.endswith("Or do without it: --rdzv-conf store=torch.")
