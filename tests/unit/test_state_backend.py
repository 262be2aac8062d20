"""What a plug-in's state backend raises, as torch's dynamic rendezvous gets it; and how many nodes are waited for."""

from __future__ import annotations

import dataclasses
import logging
from types import SimpleNamespace

import pytest
from torch.distributed import FileStore
from torch.distributed.elastic.rendezvous import api

from rdzv_plugins.backends import c10d
from rdzv_plugins.backends.c10d import C10dOptions
from rdzv_plugins.dynamic.handler import TorchStateBackend, dynamic_handler, share_store
from rdzv_plugins.dynamic.options import DynamicSettings
from rdzv_plugins.errors import BrokenPlugin, EndpointUnreachable, RendezvousFailed
from rdzv_plugins.interfaces import Backend, Capability, Request
from rdzv_plugins.options import parse_options
from rdzv_plugins.registry.catalog import Entry
from rdzv_plugins.registry.create import prepare
from rdzv_plugins.registry.discovery import PluginRecord


class Failing:
    name = "failing"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def get_state(self):
        raise self.error

    def set_state(self, state, token=None):
        raise self.error


@pytest.mark.parametrize("ask", [lambda b: b.get_state(), lambda b: b.set_state(b"x", 1)], ids=["get", "set"])
def test_a_service_that_does_not_answer_is_torchs_error(ask):
    ours = EndpointUnreachable("nobody answers at here", remedy="Start it.")
    with pytest.raises(api.RendezvousConnectionError) as caught:
        ask(TorchStateBackend(Failing(ours)))
    assert isinstance(caught.value, EndpointUnreachable)
    assert (str(caught.value), caught.value.remedy) == ("nobody answers at here", "Start it.")
    with pytest.raises(api.RendezvousStateError):
        ask(TorchStateBackend(Failing(RendezvousFailed("half a state"))))
    with pytest.raises(api.RendezvousConnectionError, match=r"_state of backend 'failing' has failed: Stale.*: gone"):
        ask(TorchStateBackend(Failing(type("StaleHandle", (OSError,), {})("gone"))))


def test_a_fault_that_torchs_thread_has_met_reaches_the_agent():
    """torch's thread ends with it, and nobody looks there."""
    backend = Failing(BrokenPlugin("plug-in 'toy' raised KeyError in get_state()"))
    state = TorchStateBackend(backend)
    for ask in (state.get_state, lambda: state.set_state(b"x", 1)):
        with pytest.raises(BrokenPlugin, match="KeyError in get_state"):
            ask()
        backend.error = api.RendezvousConnectionError("it works again, more or less")


@pytest.mark.parametrize("capability", [None, Capability.ELASTIC])
def test_without_elastic_all_nodes_are_waited_for(capability, caplog):
    record = PluginRecord("toy", "toy", "rdzv-toy", "1")
    backend = Backend("toy", "a toy", create=dataclasses.replace, capabilities=frozenset({capability} - {None}))
    with caplog.at_level(logging.WARNING):
        request = prepare(Entry(backend, record), Request("toy", "run", "here", 1, 3, 1))
    if capability:
        assert (request.min_nodes, request.max_nodes, caplog.text) == (1, 3, "")
    else:
        assert (request.min_nodes, request.max_nodes) == (3, 3)
        assert "backend 'toy' is not elastic: it waits for all 3 nodes of --nnodes=1:3" in caplog.text


def held(state: bytes, **more):
    """The backend of a service that has this state, whoever has written it."""
    return SimpleNamespace(name="held", get_state=lambda: (state, 1), set_state=lambda *_: (state, 1, False), **more)


@pytest.mark.parametrize(
    "state", [b"\x80not ours", b"{}", b"[1]", b'{"store": "h:1", "state": 5}', b'{"store": "h:1", "state": "?"}']
)
def test_a_state_of_another_program_is_torchs_error_of_state(state):
    """A state backend that has no store: the address of one travels in an envelope around torch's state."""
    with pytest.raises(api.RendezvousStateError, match="corrupt, or was not written by") as caught:
        share_store(TorchStateBackend(held(state)), Request("held", "run", "", 1, 2, 1), DynamicSettings())
    assert isinstance(caught.value, RendezvousFailed)


@pytest.mark.parametrize("state", [b"", b"garbage", b"\x80\x04", b"cnowhere\nnothing\n."])
def test_a_state_that_torch_cannot_read_is_one_too(state, tmp_path):
    backend = held(state, store=FileStore(str(tmp_path / "store")), local_addr="127.0.0.1")
    handler = dynamic_handler(backend, Request("held", "run", "", 1, 1, 1), DynamicSettings())
    with pytest.raises(api.RendezvousStateError) as caught:
        handler.next_rendezvous()
    assert isinstance(caught.value, RendezvousFailed)


def test_who_was_forestalled_waits_before_it_writes_again():
    waited, answers = [], [True, False, None, False]
    inner = SimpleNamespace(set_state=lambda *_: None if (done := answers.pop(0)) is None else (b"x", 1, done))
    backend = TorchStateBackend(inner, lambda: waited.append(len(waited)))
    assert [backend.set_state(b"x") for _ in range(4)] == [(b"x", 1, True), (b"x", 1, False), None, (b"x", 1, False)]
    assert waited == [0, 1]


def test_keys_of_c10d_mean_what_they_mean_in_torch(caplog):
    """torch's c10d does not look at ``timeout``, with which static waits."""
    options = parse_options(
        C10dOptions,
        {"timeout": "5", "last_call_timeout": "7", "close_timeout": "8", "read_timeout": "9"},
        "backend c10d",
    )
    assert (options.join_seconds, options.last_call_timeout, options.close_timeout) == (600, 7, 8)
    assert parse_options(C10dOptions, {"timeout": "5", "join_timeout": "30"}, "backend c10d").join_seconds == 30
    assert parse_options(DynamicSettings, {"timeout": "5"}, "backend c10d").join_seconds == 5
    request = Request(backend="c10d", run_id="r", endpoint="h:1", min_nodes=1, max_nodes=2, nproc_per_node=1)
    c10d.validate(dataclasses.replace(request, options=options))
    assert "timeout is not used by c10d" in caplog.text
    caplog.clear()
    c10d.validate(dataclasses.replace(request, options=C10dOptions()))
    assert caplog.text == ""


def test_torchs_own_errors_and_faults_of_the_plugin_pass_as_they_are():
    for error in (api.RendezvousConnectionError("torch's"), ValueError("a fault"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            TorchStateBackend(Failing(error)).get_state()
        assert caught.value is error
