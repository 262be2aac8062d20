"""The connection of a proxy to its root breaks, stands still, and is made again: nothing is lost or done twice."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from kits.eventually import eventually
from kits.wire import wire_client as wire
from kits.wire.attack_kit import Bystanders
from kits.wire.proxy_kit import Node, Workers, crowd, expect_requests, silent, trunks
from kits.wire.relay import Relay

from rdzv_plugins.kvstore.native.server import StoreServer

KEY = b"/key"


@pytest.fixture
def node(relay: Relay) -> Iterator[Node]:
    with Node(relay.port, name="cut off") as node:
        yield node


def test_breaks_at_any_byte_lose_and_repeat_nothing(root: StoreServer, way: tuple[Relay, Node]) -> None:
    relay, node = way
    dice = random.Random(6)
    with Bystanders(root.port) as direct, Node(root.port) as other, Bystanders(other.port) as neighbours:
        with Workers(node.port) as workers:
            workers.advance(3)
            for _ in range(15):
                relay.break_after(dice.randrange(3000), upward=dice.random() < 0.5)
                eventually(lambda: relay.broken, root.stats)
                neighbours.advance(1)
                direct.advance(1)
                relay.mend()
                workers.advance(2)
        assert node.proxy.lost == ""
        assert other.proxy.lost == ""
    with wire.Raw(root.port) as raw:  # at the root, too, each was counted once
        for number in range(3):
            assert raw.ask(wire.add(b"/worker/%d/n" % number, 0), 8) == wire.i64(workers.rounds)


@pytest.mark.parametrize("what", ["wait", "barrier", "queue"])
def test_who_waits_is_told_of_what_has_come_meanwhile(root: StoreServer, way: tuple[Relay, Node], what: str) -> None:
    relay, node = way
    ask, come = {
        "wait": (wire.keyed(wire.WAIT, [KEY, b"/other"]), wire.multi_set([(KEY, b"1"), (b"/other", b"1")])),
        "barrier": (wire.barrier(KEY, 5), wire.barrier(KEY, 5)),
        "queue": (wire.keyed(wire.WAIT, [KEY]), wire.queue_push(KEY, b"x") * 4),
    }[what]
    with crowd(node.port, 4) as clients, wire.Raw(root.port) as other:
        for client in clients:
            client.send(ask)
            # answered by the root: which knows of the wait by then
            assert client.ask(wire.queue_len(wire.NO_QUEUE), 8) == wire.i64(0)
        relay.break_()
        other.send(come)
        other.fence()
        assert silent(clients)
        relay.mend()
        for client in clients:
            assert client.receive(1) == wire.STOP_WAITING
        for client in clients:
            assert client.fence() == b""


def test_a_wait_that_begins_and_one_that_ends_without_root(root: StoreServer, relay: Relay, node: Node) -> None:
    with crowd(node.port, 3) as (early, late, gone), wire.Raw(root.port) as other:
        early.do(wire.keyed(wire.WAIT, [KEY]))
        gone.do(wire.keyed(wire.WAIT, [b"/gone"]))
        relay.break_()
        late.send(wire.keyed(wire.WAIT, [b"/late"]))
        early.send(wire.op(wire.CANCEL_WAIT))
        gone.close()
        expect_requests(node, "wait", 3)
        relay.mend()
        assert early.receive(1) == wire.WAIT_CANCELED
        other.send(wire.set_(KEY, b"") + wire.set_(b"/late", b"") + wire.set_(b"/gone", b""))
        assert late.receive(1) == wire.STOP_WAITING
        assert early.fence() == b""


def test_the_root_says_who_is_not_there(root: StoreServer, relay: Relay, node: Node) -> None:
    (trunk,) = trunks(root.stats())
    assert (trunk["name"], trunk["attached"]) == ("cut off", True)
    assert node.proxy.stats()["proxy"]["attached"] is True
    relay.break_()
    eventually(lambda: not trunks(root.stats())[0]["attached"], root.stats)
    eventually(lambda: not node.proxy.stats()["proxy"]["attached"], node.proxy.stats)
    relay.mend()
    eventually(lambda: trunks(root.stats())[0]["attached"], root.stats)
    eventually(lambda: node.proxy.stats()["proxy"]["attached"], node.proxy.stats)
    assert len(trunks(root.stats())) == 1
    assert node.proxy.stats()["proxy"]["reconnects"] == 1
