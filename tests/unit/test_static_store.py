"""Who serves the stores of a ``static`` job: the native store where it is installed, torch's where not, or if asked."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import pytest
from torch.distributed import PrefixStore, TCPStore

from rdzv_plugins import Outcome, kvstore
from rdzv_plugins.assemble.create import create_rendezvous, prepare
from rdzv_plugins.assemble.rendezvous import Rendezvous
from rdzv_plugins.backends import static
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.native.framing import ask_statistics
from rdzv_plugins.testing.harness import free_port

PATIENCE_S = 60.0


def node(port: int, rank: int, conf: dict[str, str], nodes: int = 2) -> Rendezvous:
    host = PluginHost.load()
    entry = host.catalog.find("static")
    given = MappingProxyType({"timeout": str(PATIENCE_S), "linger": "2"} | conf)
    request = Request("static", "job", f"127.0.0.1:{port}", nodes, nodes, 1, node_rank=rank, conf=given)
    return create_rendezvous(host, entry, prepare(entry, request))


def leave(*handlers: Rendezvous) -> None:
    for handler in reversed(handlers):  # node rank 0 waits for the others
        handler.leave(Outcome("done"))
    for handler in handlers:
        handler.shutdown()


def is_native(port: int) -> bool:
    """Whether a native store answers there."""
    try:
        ask_statistics(Endpoint("127.0.0.1", port), PATIENCE_S)
    except EndpointUnreachable:
        return False
    return True


@pytest.mark.parametrize("conf", [({}, {"store": "torch"}), ({"store": "torch"}, {})], ids=["native", "torch"])
def test_nodes_need_not_have_the_same_store(conf: tuple[dict[str, str], dict[str, str]]) -> None:
    port = free_port()
    handlers = [node(port, rank, each) for rank, each in enumerate(conf)]
    with ThreadPoolExecutor(2) as pool:
        joined = [pool.submit(handler.next_rendezvous) for handler in handlers]
        first, second = (each.result(PATIENCE_S) for each in joined)
    first.store.set("value", "of node 0")
    assert second.store.get("value") == b"of node 0"
    assert first.bootstrap_store_info is not None
    native = "store" not in conf[0]
    assert [is_native(port), is_native(first.bootstrap_store_info.master_port)] == [native, native]
    # a node of an earlier version has torch's client
    theirs = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    assert PrefixStore("agents/1", PrefixStore("rdzv_plugins.static.job", theirs)).get("value") == b"of node 0"
    leave(*handlers)


@pytest.fixture
def without_native_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a wheel that was built without a compiler."""
    monkeypatch.delattr(kvstore, "_native", raising=False)
    monkeypatch.setitem(sys.modules, "rdzv_plugins.kvstore._native", None)
    static._has_native_store.cache_clear()
    yield
    static._has_native_store.cache_clear()


@pytest.mark.usefixtures("without_native_store")
def test_torchs_store_serves_where_there_is_no_native_one(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with caplog.at_level(logging.DEBUG):
        handler = node(port, 0, {}, nodes=1)
        info = handler.next_rendezvous()
    assert info.store.add("n", 1) == 1
    assert not is_native(port)
    [line] = [text for text in caplog.messages if text.startswith("torch's own store serves this job")]
    assert "the native store is not part of this installation" in line
    leave(handler)
