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


@pytest.fixture(params=[1, 2], ids=["1 tier", "2 tiers"])
def nodes(request: pytest.FixtureRequest, root: StoreServer) -> Iterator[list[Node]]:
    if request.param == 1:
        with Node(root.port) as one, Node(root.port) as two:
            yield [one, two]
    else:
        with Node(root.port, leaf=False) as middle, Node(middle.port) as one, Node(root.port) as two:
            yield [one, two]


@pytest.fixture
def waiting(nodes: list[Node]) -> Iterator[list[wire.Raw]]:
    """Two clients of each; the first of one, the first of the other, and so on. They wait, in that order."""
    clients = [wire.Raw(node.port, through=True) for _ in range(2) for node in nodes]
    for client in clients:
        client.do(WAIT)
    yield clients
    for client in clients:
        client.close()


@pytest.fixture
def other(root: StoreServer) -> Iterator[wire.Raw]:
    with wire.Raw(root.port) as client:
        yield client


def push(client: wire.Raw, count: int = 1) -> None:
    client.do(b"".join(wire.queue_push(QUEUE, b"%d" % number) for number in range(count)))


def told(clients: list[wire.Raw]) -> list[bool]:
    """Who has been woken since."""
    answers = [client.fence() for client in clients]
    assert all(answer in (b"", wire.STOP_WAITING) for answer in answers), answers
    return [bool(answer) for answer in answers]


@pytest.mark.parametrize("whose", ["at the root", "of a worker"])
def test_each_push_wakes_one(waiting: list[wire.Raw], nodes: list[Node], other: wire.Raw, whose: str) -> None:
    with wire.Raw(nodes[0].port, through=True) as worker:
        pusher = other if whose == "at the root" else worker
        push(pusher, 2)
        assert told(waiting) == [True, True, False, False]
        push(pusher)
        assert told(waiting) == [False, False, True, False]
        push(pusher, 2)
        assert told(waiting) == [False, False, False, True]
        assert pusher.ask(wire.queue_len(QUEUE), 8) == wire.i64(5)


def test_who_is_gone_is_not_woken_for_another(nodes: list[Node], waiting: list[wire.Raw], other: wire.Raw) -> None:
    waiting[0].close()
    waiting[1].close()

    def left() -> list[int]:
        stats = [node.proxy.stats()["keyspaces"][0]["waited"] for node in nodes]
        return [entry["waiters"] for waited in stats for entry in waited]

    eventually(lambda: left() == [1, 1], left)
    for node in nodes:
        with wire.Raw(node.port, through=True) as client:
            assert client.fence() == b""  # the root has been told by now, too
    push(other)
    assert told(waiting[2:]) == [True, False]
    push(other)
    assert told(waiting[2:]) == [False, True]


@pytest.mark.parametrize("whose", [0, 1], ids=["of its proxy", "of another"])
def test_who_comes_later_finds_the_item(nodes: list[Node], other: wire.Raw, whose: int) -> None:
    """Somebody waits there since before the push, which was for another, who has not taken the item."""
    with crowd(nodes[whose].port, 1) as (woken,), wire.Raw(nodes[0].port, through=True) as early:
        woken.send(WAIT + wire.queue_len(wire.NO_QUEUE))
        assert woken.receive(8) == wire.i64(0)
        early.do(WAIT)
        push(other)
        assert woken.receive(1) == wire.STOP_WAITING
        assert early.fence() == b""
        with wire.Raw(nodes[0].port, through=True) as late:
            late.send(WAIT)
            assert late.fence() == wire.STOP_WAITING
        assert early.fence() == b""


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
