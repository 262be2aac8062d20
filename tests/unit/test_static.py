"""What ``static`` does where two nodes write at once, somebody writes nonsense, or nodes have stores of two kinds.

Whole jobs are stories: ``simulation/test_static_scenarios.py``.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from types import MappingProxyType

import pytest
from kits.eventually import eventually
from kits.relay import Relay
from torch.distributed import PrefixStore, TCPStore

from rdzv_plugins import Outcome
from rdzv_plugins.backends.static.control import PingResponder, ask
from rdzv_plugins.backends.static.rounds import Arrival, Go, Missing, Over, StaticRounds, parse_over, this_agent
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointLost, EndpointUnreachable
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.native.framing import ask_statistics
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.kvstore.sockets.reach import CancelToken, reach
from rdzv_plugins.kvstore.tcpstore.listener import greet_store
from rdzv_plugins.kvstore.tcpstore.plain_client import PlainClient
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.registry.create import create_rendezvous, prepare
from rdzv_plugins.registry.rendezvous import Rendezvous
from rdzv_plugins.runtime import SYSTEM
from rdzv_plugins.store import Prefixed
from rdzv_plugins.testing.harness import free_port

PATIENCE_S = 60.0


def client(port: int) -> PlainClient:
    connection = reach(Endpoint("127.0.0.1", port), PATIENCE_S, "the store", greet_store)
    return PlainClient(connection, prefix="", timeout=PATIENCE_S, interruption=CancelToken())


def test_who_leaves_just_when_a_round_is_complete_ends_it() -> None:
    """Either node rank 0 sees that it has gone, or it sees that the round is complete."""
    with StoreServer("127.0.0.1") as server, closing(client(server.port)) as store:
        rounds = StaticRounds(Prefixed("r", store))
        me = this_agent()
        lost = Over("node rank 1", "it got SIGTERM", me.incarnation)
        rounds.arrive(1, 0, Arrival("zero", "h", 1))
        rounds.arrive(1, 1, me)
        assert rounds.wait_arrivals(1, 2, PATIENCE_S) is not None
        rounds.settle(1, Go(("zero", me.incarnation)))
        rounds.withdraw(1, 1, lost)
        assert rounds.over(1) == lost
        assert rounds.missing(1, 2) == Missing((), left=(1,))
        rounds.arrive(2, 1, me)
        rounds.withdraw(2, 1, lost)
        assert rounds.over(2) is None
        assert rounds.arrive(2, 1, Arrival("new", "h", 2)) is None, "its place is free"
        rounds.withdraw(2, 1, lost)
        assert rounds.missing(2, 2) == Missing((0,)), "another one's arrival stays"


def test_a_process_that_nobody_has_waited_for_has_ended() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    eventually(Arrival("x", "here", child, this_agent().machine).has_ended, lambda: "it lives")
    os.waitpid(child, 0)
    assert not Arrival("x", "another", 2**22 + 1).has_ended(), "nobody can know"
    assert not this_agent().has_ended()


@pytest.mark.parametrize("text", [b"node rank 1 (h (pid 7))", b"\xff{", b"[]", b'{"by": "x"}'])
def test_why_a_round_is_over_is_read_whatever_is_written(text: bytes) -> None:
    assert parse_over(text).lost == ""
    assert str(parse_over(text)).endswith("has asked for a new round")


def test_an_agent_answers_on_another_connection_when_one_is_lost_and_its_end_is_told() -> None:
    lost: list[Exception] = []
    with StoreServer("127.0.0.1") as server, Relay(server.port) as relay, closing(client(server.port)) as whole:
        store = Prefixed("p", whole)
        presence = PingResponder(store, Endpoint("127.0.0.1", relay.port), "p", "a", lost.append, SYSTEM)
        relay.break_()
        relay.mend()
        assert ask(store, ["a"], PATIENCE_S) == {"a"}
        assert not lost
        relay.refuse()
        eventually(lambda: [type(each) for each in lost] == [EndpointLost], lambda: lost)
        presence.stop()
        assert ask(store, ["a", "never"], PATIENCE_S) == set(), "who has left is not waited for"


def node(port: int, rank: int, conf: dict[str, str], nodes: int = 2) -> Rendezvous:
    host = PluginHost.load()
    entry = host.catalog.find("static")
    given = MappingProxyType({"timeout": str(PATIENCE_S), "linger": "2"} | conf)
    request = Request("static", "job", f"127.0.0.1:{port}", nodes, nodes, 1, node_rank=rank, conf=given)
    return create_rendezvous(host, entry, prepare(entry, request))


@pytest.mark.parametrize("conf", [({}, {"store": "torch"}), ({"store": "torch"}, {})], ids=["native", "torch"])
def test_nodes_need_not_have_the_same_store(conf: tuple[dict[str, str], dict[str, str]]) -> None:
    port = free_port()
    handlers = [node(port, rank, each) for rank, each in enumerate(conf)]
    with ThreadPoolExecutor(2) as pool:
        joined = [pool.submit(handler.next_rendezvous) for handler in handlers]
        first, second = (each.result(PATIENCE_S) for each in joined)
    first.store.set("value", "of node 0")
    assert second.store.get("value") == b"of node 0"
    native = "store" not in conf[0]
    with nullcontext() if native else pytest.raises(EndpointUnreachable):
        ask_statistics(Endpoint("127.0.0.1", port), PATIENCE_S)
    # a node of an earlier version has torch's client
    theirs = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    assert PrefixStore("agents/1", PrefixStore("rdzv_plugins.static.job", theirs)).get("value") == b"of node 0"
    for handler in reversed(handlers):  # node rank 0 waits for the others
        handler.leave(Outcome("done"))
    for handler in handlers:
        handler.shutdown()


def test_workers_that_fail_when_node_rank_0_has_said_that_it_leaves_use_no_restart() -> None:
    """Nobody need have been told yet: whoever counts the failure asks first."""
    port = free_port()
    handlers = [node(port, rank, {}) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for joined in [pool.submit(handler.next_rendezvous) for handler in handlers]:
            joined.result(PATIENCE_S)
        assert not handlers[1].handler.peer_lost()
        left = pool.submit(handlers[0].leave, Outcome("lost", "it was preempted"))
        eventually(handlers[1].handler.peer_lost)
        handlers[1].leave(Outcome("lost", "the job is over"))
        left.result(PATIENCE_S)
    for handler in reversed(handlers):
        handler.shutdown()
