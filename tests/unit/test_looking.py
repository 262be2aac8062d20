"""A stranger's backend is asked what listens at an endpoint, and what its runs do; one with a fault harms nobody."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kits.wire.tls_kit import Issued

from rdzv_plugins import Backend, Request, option
from rdzv_plugins.errors import BrokenPlugin, EndpointUnreachable, OptionError, UsageError
from rdzv_plugins.interfaces import RunStatus
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.options import parse_conf
from rdzv_plugins.registry import Catalog, PluginHost, PluginRecord
from rdzv_plugins.registry.catalog import Entry
from rdzv_plugins.registry.create import can_look, create_rendezvous, look, recognise

REQUEST = Request("toy", "run", "h:1", 1, 1, 1, given=frozenset({"run_id"}))


def entry(name: str, **fields: Any) -> Entry:
    fields.setdefault("create", print)
    backend = Backend(name=name, summary=f"the {name}", **fields)
    return Entry(backend, PluginRecord(name, f"{name}_module", f"dist-{name}", "1.0", backends=(backend,)))


def catalog(*entries: Entry) -> Catalog:
    return Catalog([each.record for each in entries])


def says(text: str) -> Callable[[Request, float], str]:
    return lambda request, timeout: text


def raises(request: Request, timeout: float) -> str:
    raise OSError("a fault of the plug-in")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is an answer to wait for."""
    monkeypatch.setattr("rdzv_plugins.registry.create._ANSWER_S", 60.0)


@pytest.fixture
def hang() -> Iterator[Callable[[Request, float], str]]:
    """Does not return before the test is over."""
    over = threading.Event()
    yield lambda request, timeout: str(over.wait())
    over.set()


def test_the_one_that_knows_it_is_found_whatever_the_others_do(hang: Callable[[Request, float], str]) -> None:
    entries = [entry("a", recognise=hang), entry("b", recognise=raises), entry("c"), entry("d", recognise=says(""))]
    mine = entry("mine", recognise=says("the rendezvous of run 'a' by mine"))
    found = recognise(catalog(*entries, mine), REQUEST)
    assert found is not None
    assert (found.entry, found.what) == (mine, "the rendezvous of run 'a' by mine")


def test_a_node_asks_the_others_and_not_its_own() -> None:
    asked: list[Request] = []
    answers: list[str] = []

    def create(request: Request) -> Any:
        answers.append(request.whose("elsewhere:7"))
        raise UsageError("that is enough")

    def other(request: Request, timeout: float) -> str:
        asked.append(request)
        return "another's"

    mine = entry("mine", create=create, recognise=says("mine"))
    host = PluginHost([mine.record, entry("other", recognise=other).record])
    with pytest.raises(UsageError, match="that is enough"):
        create_rendezvous(host, mine, dataclasses.replace(REQUEST, options="parsed"))
    assert answers == ["another's"]
    ((endpoint, options),) = [(each.endpoint, each.options) for each in asked]
    assert (endpoint, options) == ("elsewhere:7", None)


@dataclass(frozen=True)
class Options:
    prefix: str = option("/", help="Of its keys.")


def test_status_gets_the_options_and_its_errors_are_its_own() -> None:
    seen = []

    def status(request: Request, timeout: float) -> RunStatus:
        seen.append((request.options, timeout))
        if request.options.prefix == "/gone":
            raise EndpointUnreachable("it is not there")
        if request.options.prefix == "/slow":
            raise TimeoutError("no answer")
        if request.options.prefix == "/wrong":
            raise KeyError("a")
        return RunStatus(3, "complete")

    mine = entry("mine", status=status, options=Options)
    assert can_look(mine.backend)
    assert look(mine, dataclasses.replace(REQUEST, conf={"prefix": "/p"}), 5.0) == RunStatus(3, "complete")
    assert seen == [(Options("/p"), 5.0)]
    for prefix, kind in (("/gone", EndpointUnreachable), ("/slow", EndpointUnreachable), ("/wrong", BrokenPlugin)):
        with pytest.raises(kind):
            look(mine, dataclasses.replace(REQUEST, conf={"prefix": prefix}), 5.0)
    with pytest.raises(OptionError):
        look(mine, dataclasses.replace(REQUEST, conf={"prefixx": "a"}), 5.0)


def test_a_store_under_tls_is_asked_by_those_who_speak_it_and_warns_of_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issued = Issued(tmp_path / "ours")
    with caplog.at_level(logging.WARNING), StoreServer("127.0.0.1", tls=issued.files) as server:
        request = Request(
            "parallel", "run", f"127.0.0.1:{server.port}", 1, 1, 1, given=frozenset(), conf=parse_conf(issued.conf)
        )
        found = recognise(PluginHost.load().catalog, request)
        assert found is not None
        assert "a native store of rdzv-plugins" in found.what
        assert server.stats()["refused"] == {}
        without = dataclasses.replace(request, conf={})  # nothing is known of certificates: all are asked
        assert recognise(PluginHost.load().catalog, without) is not None
    asked = [entry("toy", recognise=says("mine"))]
    assert recognise(catalog(*asked), request) is not None, "nobody listens there any more"
