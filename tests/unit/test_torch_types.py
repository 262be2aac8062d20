"""The border with torch: its stores with our errors, ours with torch's; and the same methods on both sides."""

from __future__ import annotations

import inspect
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import DistNetworkError, DistStoreError, FileStore, HashStore, Store, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo, api
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend as TorchBackend
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from rdzv_plugins import Backend, Failure, Outcome, RendezvousBackend, RendezvousHandler, errors
from rdzv_plugins.backends.static.handler import StaticHandler
from rdzv_plugins.dynamic.handler import EnvelopeBackend, FreshDynamicHandler
from rdzv_plugins.elastic.handler import ElasticHandler
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.sockets.reach import CancelToken, reach
from rdzv_plugins.kvstore.tcpstore.listener import greet_store
from rdzv_plugins.kvstore.tcpstore.plain_client import PlainClient
from rdzv_plugins.kvstore.tcpstore.torch_store import serve
from rdzv_plugins.options import PortRange
from rdzv_plugins.registry import PluginRecord
from rdzv_plugins.registry.catalog import Entry
from rdzv_plugins.registry.contract_checks import checked
from rdzv_plugins.registry.rendezvous import Rendezvous
from rdzv_plugins.torch_types import OfTorch
from rdzv_plugins.torchrun.torchrun_handler import AgentStore, TorchrunHandler

SOON = timedelta(seconds=0.01)


@pytest.fixture(params=["tcp", "file"])
def torchs(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    return served() if request.param == "tcp" else FileStore(str(tmp_path / "file"))


def test_store_of_torch_has_all_that_the_contract_asks_and_our_errors(torchs: Store) -> None:
    store = OfTorch(torchs)
    store.set("a", "1")
    assert (store.get("a"), store.check(["a"]), store.check(["a", "none"])) == (b"1", True, False)
    assert (store.add("n", 2), store.add("n", 3)) == (2, 5)
    assert store.compare_set("c", "", "first") == b"first"
    assert store.num_keys() >= 2
    store.wait(["a"])
    with pytest.raises(errors.StoreTimeout):
        store.wait(["none"], SOON)
    store.set_timeout(timedelta(seconds=30))
    assert store.timeout == timedelta(seconds=30)


def served() -> TCPStore:
    store = serve("127.0.0.1", PortRange(), timeout=60, what="a test")
    assert store is not None
    return store


def test_torchs_store_has_several_keys_at_once_and_a_lost_server_is_a_lost_store() -> None:
    server: TCPStore | None = served()
    assert server is not None
    client = OfTorch(TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False))
    client.multi_set(["x", "y"], ["1", b"2"])
    assert client.multi_get(["y", "x"]) == [b"2", b"1"]
    assert (client.delete_key("x"), client.delete_key("x")) == (True, False)
    server = None
    with pytest.raises(errors.StoreLost):
        client.get("a")


def test_torch_gets_its_own_errors_of_our_client() -> None:
    server: TCPStore | None = served()
    assert server is not None
    connection = reach(Endpoint("127.0.0.1", server.port), 60, "the store", greet_store)
    client = PlainClient(connection, prefix="p", timeout=60, interruption=CancelToken())
    store = AgentStore(client, 0, lambda: None)
    assert isinstance(store, Store)
    store.set("a", "1")
    with pytest.raises(DistStoreError, match=r"0\.01 s for none"):
        store.wait(["none"], SOON)
    assert store.get("a") == b"1"
    server = None
    for call in (lambda: store.get("a"), lambda: store.add("n", 1), lambda: store.check(["a"])):
        with pytest.raises(DistNetworkError, match=r"127\.0\.0\.1"):
            call()


def joined(info: Any) -> Any:
    """The round as an agent has it of a handler that returns ``info``."""
    hooks = SimpleNamespace(before_join=lambda _: None, after_join=lambda *_: None)
    inner: Any = SimpleNamespace(next_rendezvous=lambda: info)
    request = Request("b", "r", "h:1", 1, 1, 1)
    return Rendezvous(inner, hooks, request).next_rendezvous()  # type: ignore[arg-type]


def test_round_of_a_strangers_handler_is_as_one_of_ours() -> None:
    info = joined(RendezvousInfo(HashStore(), 1, 2, RendezvousStoreInfo("h", 29500)))
    assert (info.rank, info.world_size) == (1, 2)
    assert (info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) == ("h", 29500)
    with pytest.raises(errors.StoreTimeout):
        info.store.wait(["none"], SOON)


def test_error_of_a_wait_that_comes_at_once_is_no_time_out() -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("the server objects")

    inner = SimpleNamespace(wait=fails, get=fails, multi_get=fails, timeout=timedelta(seconds=60))
    store = OfTorch(inner)
    for call in (lambda: store.wait(["a"]), lambda: store.get("a"), lambda: store.multi_get(["a"])):
        with pytest.raises(RuntimeError, match="the server objects"):
            call()


OUR_HANDLERS = [StaticHandler, ElasticHandler, FreshDynamicHandler, TorchrunHandler]
OF_TORCH = {
    RendezvousHandler: (api.RendezvousHandler, api.RendezvousHandler.__abstractmethods__ | {"use_agent_store"}),
    RendezvousBackend: (TorchBackend, TorchBackend.__abstractmethods__),
}
OPTIONAL = {name for name in vars(RendezvousHandler) if name[0] != "_"} - RendezvousHandler.__abstractmethods__
FAILURE = Failure(node_rank=0, host="node", global_rank=0, local_rank=0, pid=1, exit_code=3)


def parameters(cls, name):
    member = inspect.getattr_static(cls, name)
    return list(inspect.signature(member.fget if isinstance(member, property) else member).parameters)


def of_torch():
    store = HashStore()
    backend = C10dRendezvousBackend(store, "run")
    dynamic = DynamicRendezvousHandler.from_backend("run", store, backend, 1, 1, local_addr="127.0.0.1")
    return StaticTCPRendezvous("127.0.0.1", 29500, 0, 1, "run", timeout=1), dynamic, backend


def as_one_of_ours(created):
    record = PluginRecord("toy", "toy", "rdzv-toy", "1.0")
    return checked(created, Entry(Backend(name="toy", summary="a toy", create=lambda _: created), record))


def test_torchs_objects_are_accepted_each_as_one_of_ours():
    *handlers, backend = of_torch()
    assert [isinstance(as_one_of_ours(each), RendezvousHandler) for each in (*handlers, backend)] == [True, True, False]
    assert isinstance(as_one_of_ours(backend), RendezvousBackend)


def test_a_handler_of_torch_is_asked_what_torch_asks_and_knows_nothing_of_the_rest():
    _, dynamic, _ = of_torch()
    handler = as_one_of_ours(dynamic)
    told = [(handler.get_run_id(), handler.get_backend(), handler.use_agent_store, handler.num_nodes_waiting())]
    assert told == [("run", dynamic.get_backend(), dynamic.use_agent_store, 0)]
    assert not handler.is_closed()
    handler.set_closed()
    assert (handler.is_closed(), dynamic.is_closed()) == (True, True)
    assert (handler.holding, handler.questions, handler.first_failure(), handler.waits_for()) == (None, None, None, "")
    assert (handler.must_rejoin(), handler.peer_lost(), handler.check_by(list)) == (False, False, False)
    assert [*handler.working_peers(), *handler.lost_peers(), *handler.count_restart("note")] == []
    assert handler.worker_env() == {}
    told = (handler.note_failure(FAILURE), handler.note_leaving("it has to"), handler.leave(Outcome("done")))
    assert {*told, handler.raise_if_ended(), handler.note_done(), handler.stay(), handler.tell_events(print)} == {None}
    assert handler.shutdown()


@pytest.mark.parametrize(
    ("interface", "cls"),
    [(RendezvousHandler, cls) for cls in (RendezvousHandler, *OUR_HANDLERS)]
    + [(RendezvousBackend, cls) for cls in (RendezvousBackend, EnvelopeBackend)],
)
def test_methods_are_torchs_with_their_parameters(interface, cls):
    torchs, names = OF_TORCH[interface]
    assert {name: parameters(cls, name) for name in names} == {name: parameters(torchs, name) for name in names}


@pytest.mark.parametrize("cls", [StaticHandler, ElasticHandler, FreshDynamicHandler])
def test_our_handlers_keep_to_the_parameters_of_what_is_optional(cls):
    methods = [name for name in OPTIONAL if callable(vars(RendezvousHandler)[name])]
    assert {name: parameters(cls, name) for name in methods} == {
        name: parameters(RendezvousHandler, name) for name in methods
    }
