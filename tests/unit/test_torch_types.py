"""The border with torch: its stores with our errors, ours with torch's, whoever's store a handler returns."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import DistNetworkError, DistStoreError, FileStore, HashStore, PrefixStore, Store, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

from rdzv_plugins import errors
from rdzv_plugins.assemble.rendezvous import Rendezvous
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.sockets.reach import Interruption, reach
from rdzv_plugins.kvstore.tcpstore.listener import greet_store
from rdzv_plugins.kvstore.tcpstore.plain_client import PlainClient
from rdzv_plugins.kvstore.tcpstore.torch_store import serve
from rdzv_plugins.options import PortRange
from rdzv_plugins.torch_bridge.agent_store import AgentStore
from rdzv_plugins.torch_types.stores import OfTorch

SOON = timedelta(seconds=0.01)


@pytest.fixture(params=["tcp", "file", "hash", "prefix"])
def torchs(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    tcp = served()
    stores = {
        "tcp": tcp,
        "file": FileStore(str(tmp_path / "file")),
        "hash": HashStore(),
        "prefix": PrefixStore("p", tcp),
    }
    return stores[request.param]


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
    client = PlainClient(connection, prefix="p", timeout=60, interruption=Interruption())
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
