"""A push wakes exactly one of those who wait, wherever they are; none is lost. The order is in test_differential."""

from __future__ import annotations

import random
import threading
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


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_wake_that_comes_too_late_for_one_is_for_another(root: StoreServer, how: str) -> None:
    """It is under way to a proxy whose only waiter gives up meanwhile: somebody else's proxy gets it."""
    with (
        Relay(root.port) as relay,
        Node(relay.port) as far,
        Node(root.port) as near,
        crowd(far.port, 1) as (first,),
        wire.Raw(near.port, through=True) as second,
        wire.Raw(root.port) as other,
    ):
        first.send(WAIT + wire.queue_len(wire.NO_QUEUE))
        assert first.receive(8) == wire.i64(0)
        second.do(WAIT)
        relay.stall()
        other.do(wire.queue_push(QUEUE, b"0"))
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


@pytest.mark.parametrize("kind", ["proxies", pytest.param("tiers", marks=pytest.mark.thorough)])
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
