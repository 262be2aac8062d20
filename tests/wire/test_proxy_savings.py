"""What a proxy does not send up, in counts: waits shared, adds and arrivals combined, values kept and read ahead."""

from __future__ import annotations

from itertools import chain

import pytest
from kits.eventually import eventually
from kits.relay import Relay
from kits.wire import wire_client as wire
from kits.wire.attack_kit import PROXY, ServerProcess, stopped
from kits.wire.proxy_kit import CLIENTS, Node, crowd, expect_requests, operations

from rdzv_plugins.kvstore.native.server import StoreServer

KEY = b"/key"


def text(clients: list[wire.Raw], request: bytes) -> list[bytes]:
    for client in clients:
        client.send(request)
    return [client.receive_text() for client in clients]


def test_those_who_wait_for_one_key_wait_once(root: StoreServer, node: Node, clients: list[wire.Raw]) -> None:
    assert root.stats()["connections"]["open"] == root.stats()["connections"]["peak"] == 1
    assert node.proxy.stats()["connections"]["open"] == CLIENTS
    for client in clients:
        client.send(wire.keyed(wire.WAIT, [KEY]))
    expect_requests(node, "wait", CLIENTS)
    for client in clients:
        assert client.fence() == b""
    eventually(lambda: root.stats()["keyspaces"][0]["waited_keys"] == 1, root.stats)
    eventually(lambda: root.stats()["requests"]["follow"] > 0, root.stats)
    assert clients[0].ask(wire.queue_len(wire.NO_QUEUE), 8) == wire.i64(0)  # the root has done all that came before
    assert root.stats()["requests"]["follow"] == node.proxy.stats()["proxy"]["upstream"]["follow"] == 1
    assert node.saved()["waits"] == CLIENTS - 1
    (entry,) = node.proxy.stats()["keyspaces"][0]["waited"]
    assert (entry["key"], entry["waiters"]) == ("/key", CLIENTS)
    with wire.Raw(root.port) as other:
        other.send(wire.set_(KEY, b"value"))
        for client in clients:
            assert client.receive(1) == wire.STOP_WAITING
    before = operations(root)
    assert text(clients, wire.get(KEY)) == [b"value"] * CLIENTS, "and the value has come with the answer"
    assert operations(root) == before
    assert node.saved()["hits"] == CLIENTS


def kept(node: Node, client: wire.Raw, value: bytes) -> bool:
    """Whether the proxy has the value in its cache, after it was asked for it."""
    assert text([client], wire.get(KEY)) == [value]
    return bool(node.proxy.stats()["proxy"]["cached"]["keys"])


def test_a_value_is_fetched_once_and_again_when_it_has_been_written(
    root: StoreServer, node: Node, clients: list[wire.Raw]
) -> None:
    with wire.Raw(root.port) as other:
        for turn in range(5):
            other.do(wire.set_(KEY, b"%d" % turn))
            # a value is not kept while those who have just been asked for it may still be told so
            eventually(lambda turn=turn: kept(node, clients[0], b"%d" % turn), node.proxy.stats)
            before = operations(root)
            for _ in range(10):
                assert text(clients, wire.get(KEY)) == [b"%d" % turn] * CLIENTS
                for client in clients:
                    assert client.ask(wire.keyed(wire.CHECK, [KEY]), 1) == b"\0"
                    assert client.ask(wire.keyed(wire.WAIT, [KEY]), 1) == wire.STOP_WAITING
                assert text(clients, wire.keyed(wire.MULTI_GET, [KEY])) == [b"%d" % turn] * CLIENTS
            assert operations(root) == before, "all are answered by the proxy"
        assert root.stats()["requests"]["recalled"] >= 4, "it was asked back by each write but the first"
    assert node.saved()["hits"] >= 5 * 10 * 4 * CLIENTS


ADDS = {
    "different": [3**power for power in range(CLIENTS)],
    "wrapping": [2**62] * CLIENTS,
    "negative": [1, -2, 3, -4, 5, -6, 7, -8],
}


@pytest.mark.parametrize("deltas", ADDS.values(), ids=ADDS)
def test_adds_that_meet_go_up_as_one(root: StoreServer, deltas: list[int]) -> None:
    """The first is under way, as long as we like, while the others come."""
    with Relay(root.port) as relay, Node(relay.port) as node, crowd(node.port, CLIENTS) as clients:
        relay.stall()
        for client, delta in zip(clients, deltas, strict=True):
            client.send(wire.add(KEY, delta))
        expect_requests(node, "add", CLIENTS)
        relay.mend()
        sums = [client.receive_i64() for client in clients]
        # each began where another one has ended: in some order
        total = sum(deltas)
        ends, begins = [*sums, 0], [total, *(after - delta for after, delta in zip(sums, deltas, strict=True))]
        assert sorted(each % 2**64 for each in ends) == sorted(each % 2**64 for each in begins), sums
        if min(deltas) >= 0 and total < 2**63:  # no sum on the way is beyond those that they see
            sent = root.stats()["requests"]["forward"]
            assert sent <= 2, "those that came with the first, and all the others"
            assert node.saved()["adds"] == CLIENTS - sent
        # a client's next add is after its own
        relay.stall()
        for client in clients:
            client.send(wire.add(KEY, 1) * 3)
        expect_requests(node, "add", 2 * CLIENTS)
        relay.mend()
        last = [[client.receive_i64() for _ in range(3)] for client in clients]
        assert sorted(chain.from_iterable(last)) == sorted(
            (total + each + 2**63) % 2**64 - 2**63 for each in range(1, 3 * CLIENTS + 1)
        )
        # who leaves has added all the same, or not at all
        relay.stall()
        for client in clients:
            client.send(wire.add(KEY, 1))
        expect_requests(node, "add", 5 * CLIENTS)
        clients[0].close()
        relay.mend()
        assert len({client.receive_i64() for client in clients[1:]}) == CLIENTS - 1


def test_arrivals_of_a_node_go_up_together(root: StoreServer) -> None:
    nodes = 2
    with (
        ServerProcess(threads=PROXY, root=root.port) as one,
        ServerProcess(threads=PROXY, root=root.port) as two,
        crowd(one.port, CLIENTS) as mine,
        crowd(two.port, CLIENTS) as theirs,
    ):
        for turn in range(5):
            before = root.stats()["requests"]["arrive"]
            key = b"/barrier/%d" % turn
            for proxy, clients in ((one, mine), (two, theirs)):
                with stopped(proxy.pid):  # it finds the requests of all in one turn
                    for client in clients:
                        client.send(wire.barrier(key, nodes * CLIENTS))
                eventually(lambda before=before: root.stats()["requests"]["arrive"] > before, root.stats)
            for client in mine + theirs:
                assert client.receive(1) == wire.STOP_WAITING
            assert root.stats()["requests"]["arrive"] - before <= 2 * nodes


@pytest.mark.thorough
def test_keys_that_are_numbered_are_read_ahead(root: StoreServer, node: Node, clients: list[wire.Raw]) -> None:
    """As torch's gloo asks: twice whether a key is there, and then for the value."""
    keys = [b"/default_pg/0//cpu//0/%d" % rank for rank in range(200)]
    asked = []
    with wire.Raw(root.port) as other:
        other.do(b"".join(wire.set_(key, b"address of " + key) for key in keys))
    for client in clients[:3]:
        for key in keys:
            assert client.ask(wire.keyed(wire.WAIT, [key]) * 2, 2) == wire.STOP_WAITING * 2
            assert client.get(key) == b"address of " + key
        assert clients[0].ask(wire.keyed(wire.CHECK, [b"/unread"]), 1) == b"\1"  # behind all that is asked ahead
        asked.append(operations(root))
    assert node.proxy.stats()["proxy"]["ahead"] > 100
    assert asked[0] <= 1.5 * len(keys)
    assert asked[2] <= asked[0] + 2, "the next readers cost the root nothing"
