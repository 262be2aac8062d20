"""A push wakes exactly one of those who wait, wherever they are, in the order in which they came; none is lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kits.eventually import eventually
from kits.wire import wire_client as wire
from kits.wire.proxy_kit import Node, crowd, expect_requests
from kits.wire.relay import Relay
from kits.wire.store_servers import running

from rdzv_plugins.kvstore.native.server import StoreServer

QUEUE = b"/queue"
WAIT = wire.keyed(wire.WAIT, [QUEUE])


@pytest.fixture
def other(root: StoreServer) -> Iterator[wire.Raw]:
    with wire.Raw(root.port) as client:
        yield client


def push(client: wire.Raw) -> None:
    client.do(wire.queue_push(QUEUE, b"0"))


@pytest.mark.parametrize("tiers", [1, 2])
def test_who_is_gone_is_not_woken_for_another(root: StoreServer, other: wire.Raw, tiers: int) -> None:
    """Two clients of each of two proxies wait in turn; the first two leave."""
    with Node(root.port, leaf=False) as middle, Node((root, middle)[tiers - 1].port) as one, Node(root.port) as two:
        nodes = (one, two)
        waiting = [wire.Raw(node.port, through=True) for _ in range(2) for node in nodes]
        for client in waiting:
            client.do(WAIT)
        for client in waiting[:2]:
            client.close()

        def left() -> list[int]:
            stats = [node.proxy.stats()["keyspaces"][0]["waited"] for node in nodes]
            return [entry["waiters"] for waited in stats for entry in waited]

        eventually(lambda: left() == [1, 1], left)
        for node in nodes:
            with wire.Raw(node.port, through=True) as client:
                assert client.fence() == b""  # the root has been told by now, too
        push(other)
        assert [client.fence() for client in waiting[2:]] == [wire.STOP_WAITING, b""]
        push(other)
        assert [client.fence() for client in waiting[2:]] == [b"", wire.STOP_WAITING]
        for client in waiting[2:]:
            client.close()


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_wake_that_comes_too_late_for_one_is_for_another(root: StoreServer, other: wire.Raw, how: str) -> None:
    """It is under way to a proxy whose only waiter gives up meanwhile: somebody else's proxy gets it."""
    with (
        Relay(root.port) as relay,
        Node(relay.port) as far,
        Node(root.port) as near,
        crowd(far.port, 1) as (first,),
        wire.Raw(near.port, through=True) as second,
    ):
        first.send(WAIT + wire.queue_len(wire.NO_QUEUE))
        assert first.receive(8) == wire.i64(0)
        second.do(WAIT)
        relay.stall()
        push(other)
        if how == "cancel":
            first.send(wire.op(wire.CANCEL_WAIT))
            expect_requests(far, "cancel_wait", 1)
            relay.mend()
            answer = first.fence()
            if answer == wire.STOP_WAITING + wire.WAIT_CANCELED:
                return  # it was told before, and the item is its own
            assert answer == wire.WAIT_CANCELED
        else:
            first.close()
            eventually(lambda: far.proxy.stats()["connections"]["open"] == 0, far.proxy.stats)
            relay.mend()
        assert second.receive(1) == wire.STOP_WAITING
        assert second.ask(wire.queue_pop(QUEUE), 17) == wire.i64(1) + wire.text(b"0")


@pytest.mark.parametrize("kind", ["threads=4", "proxies", pytest.param("tiers", marks=pytest.mark.thorough)])
def test_items_find_their_consumers_among_those_who_give_up(kind: str) -> None:
    """Some consumers cancel each wait at once. Who is told all the same takes the item; so all are taken."""
    items = 300
    taken: list[bytes] = []
    with running(kind) as server:
        patient = [server.connect() for _ in range(3)]
        hasty = [server.connect() for _ in range(3)]
        done = threading.Event()

        def pop(client: wire.Raw) -> None:
            client.send(wire.queue_pop(QUEUE))
            if client.receive_i64():
                taken.append(client.receive_text())

        def consume(client: wire.Raw) -> None:
            while True:
                assert client.ask(WAIT, 1) == wire.STOP_WAITING
                if done.is_set():
                    return
                pop(client)

        def give_up(client: wire.Raw) -> None:
            while not done.is_set():
                client.send(WAIT + wire.op(wire.CANCEL_WAIT))
                if client.receive(1) == wire.STOP_WAITING:
                    assert client.receive(1) == wire.WAIT_CANCELED
                    pop(client)

        with ThreadPoolExecutor(6) as pool:
            jobs = [pool.submit(consume, client) for client in patient]
            jobs += [pool.submit(give_up, client) for client in hasty]
            producers = [server.connect() for _ in range(2)]
            dice = random.Random(5)
            for item in range(items):
                producer = producers[dice.randrange(2)]
                producer.send(wire.queue_push(QUEUE, b"%d" % item))
                if dice.random() < 0.5:
                    assert producer.fence() == b""
            try:
                eventually(lambda: len(taken) == items, lambda: f"{len(taken)} of {items} items taken")
            finally:
                done.set()
                producers[0].send(wire.set_(QUEUE, b"end"))
            for job in jobs:
                job.result(60)
    assert sorted(taken) == sorted(b"%d" % item for item in range(items))
