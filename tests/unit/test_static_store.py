"""Who serves the stores of a ``static`` job: the native store where it is installed, torch's where not, or if asked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import pytest
from torch.distributed import PrefixStore, TCPStore

from rdzv_plugins import Outcome
from rdzv_plugins.assemble.create import create_handler, prepare
from rdzv_plugins.assemble.hosted_handler import HostedHandler
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.native.framing import ask_statistics
from rdzv_plugins.testing.harness import free_port

PATIENCE_S = 60.0


def node(port: int, rank: int, conf: dict[str, str], nodes: int = 2) -> HostedHandler:
    host = PluginHost.load()
    entry = host.catalog.find("static")
    given = MappingProxyType({"timeout": str(PATIENCE_S), "linger": "2"} | conf)
    request = Request("static", "job", f"127.0.0.1:{port}", nodes, nodes, 1, node_rank=rank, conf=given)
    return create_handler(host, entry, prepare(entry, request))


def leave(*handlers: HostedHandler) -> None:
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
