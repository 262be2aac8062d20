"""The connection of a proxy to its root breaks, stands still, or is half gone, and is made again: nothing is lost or
done twice, and what a proxy keeps is never old. One that does not give back what it holds delays a write for its hold
time, whatever it says."""

from __future__ import annotations

import contextlib
import random
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kits.eventually import eventually
from kits.relay import Relay
from kits.wire import wire_client as wire
from kits.wire.attack_kit import Workers
from kits.wire.histories import Operation, anything, recorded, violations, what_is_kept
from kits.wire.proxy_kit import Node, crowd, expect_requests, silent, trunks
from kits.wire.trunk_peer import FORWARD, OK, RECALL, RECEIVED, TAKEN, answer, attached, frame
from kits.wire.wire_client import PATIENCE, Closed, Raw, get, set_

from rdzv_plugins.kvstore.native.limits import StoreLimits
from rdzv_plugins.kvstore.native.server import StoreServer

KEY = b"/key"


@pytest.fixture
def node(relay: Relay) -> Iterator[Node]:
    with Node(relay.port, name="cut off") as node:
        yield node


def test_breaks_at_any_byte_lose_and_repeat_nothing(root: StoreServer, way: tuple[Relay, Node]) -> None:
    relay, node = way
    dice = random.Random(6)
    with Workers(root.port) as direct, Node(root.port) as other, Workers(other.port) as neighbours:
        with Workers(node.port, name=b"worker") as workers:
            workers.advance(3)
            for _ in range(15):
                relay.break_after(dice.randrange(3000), answers=dice.random() < 0.5)
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
    """Meanwhile each side says that the other is not there."""

    def attached() -> tuple[bool, bool]:
        (trunk,) = trunks(root.stats())
        assert trunk["name"] == "cut off"
        return trunk["attached"], node.proxy.stats()["proxy"]["attached"]

    assert attached() == (True, True)
    with crowd(node.port, 3) as (early, late, gone), wire.Raw(root.port) as other:
        early.do(wire.keyed(wire.WAIT, [KEY]))
        gone.do(wire.keyed(wire.WAIT, [b"/gone"]))
        relay.break_()
        late.send(wire.keyed(wire.WAIT, [b"/late"]))
        early.send(wire.op(wire.CANCEL_WAIT))
        gone.close()
        expect_requests(node, "wait", 3)
        eventually(lambda: attached() == (False, False), attached)
        relay.mend()
        eventually(lambda: attached() == (True, True), attached)
        assert node.proxy.stats()["proxy"]["reconnects"] == 1
        assert early.receive(1) == wire.WAIT_CANCELED
        other.send(wire.set_(KEY, b"") + wire.set_(b"/late", b"") + wire.set_(b"/gone", b""))
        assert late.receive(1) == wire.STOP_WAITING
        assert early.fence() == b""


def disturbed(relay: Relay, node: Node, how: str, record: Callable[[], list[Operation]]) -> list[Operation]:
    """A history during which the relay breaks or stalls again and again, each time after the node was served again.

    By the clock alone, a busy machine would break it before the node has come back, and nothing would go on.
    """
    stopping = threading.Event()

    def run() -> None:
        while not stopping.wait(0.02):
            getattr(relay, how)()
            stopping.wait(0.02)
            relay.mend()
            served = relay.passed[True] + 500
            eventually(lambda served=served: stopping.is_set() or relay.passed[True] > served, node.proxy.stats)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        return record()
    finally:
        stopping.set()
        thread.join()
        relay.mend()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "choose"),
    [("break_", anything), ("break_", what_is_kept), ("stall", what_is_kept)],
    ids=["", "kept", "stall"],
)
def test_nobody_reads_what_is_old_while_it_breaks(
    root: StoreServer, way: tuple[Relay, Node], how: str, choose: Callable[..., Any]
) -> None:
    relay, node = way
    with Node(root.port) as other:
        ports = [node.port, other.port, root.port]
        history = disturbed(relay, node, how, lambda: recorded(ports, 2 * len(ports), 300, 4, 4, choose))
        assert node.proxy.lost == other.proxy.lost == ""
        assert how == "stall" or relay.connections > 2
    assert violations(history) == []


@pytest.mark.thorough
def test_half_open_break(root: StoreServer, relay: Relay) -> None:
    """The root has seen the end of the connection, the proxy not yet: the writer waits until it must have."""
    with Node(relay.port, grace=8.0) as node, crowd(node.port, 2) as readers, wire.Raw(root.port) as writer:
        writer.do(wire.set_(KEY, b"old"))
        for reader in readers * 2:
            assert reader.get(KEY) == b"old"
        relay.break_half()
        eventually(lambda: not trunks(root.stats())[0]["attached"], root.stats)
        writer.send(wire.set_(KEY, b"new"))
        relay_mended = threading.Timer(1.0, relay.break_)  # lets go of the other half, should the writer wait for that
        relay_mended.start()
        assert writer.fence() == b""
        for reader in readers:
            reader.send(wire.get(KEY))
        relay_mended.join()
        relay.mend()
        for reader in readers:
            assert reader.receive_text() == b"new"


GRACE_MS = 3000
BEAT = frame(0, RECEIVED, struct.pack("<Q", 0))


def fetch(trunk: Raw, key: bytes, number: int = 5) -> tuple[bool, bytes]:
    """Whether it may hold the value, and the value."""
    trunk.send(frame(number, FORWARD, get(key)))
    while (told := answer(trunk))[0] != number:
        pass  # sent again: of an earlier connection
    assert told[1] == OK
    return told[2][0] == 1, told[2][9:]


@contextmanager
def kept_alive(trunk: Raw) -> Iterator[list[int]]:
    """It gives signs of life until it is closed. What else it was told, by status."""
    told: list[int] = []

    def run() -> None:
        with contextlib.suppress(Closed):
            while True:
                trunk.send(BEAT)
                while (status := answer(trunk)[1]) != TAKEN:
                    told.append(status)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the trunk was never closed"


@pytest.mark.thorough
def test_a_write_waits_no_longer_than_a_value_can_be_held(root: StoreServer) -> None:
    with Node(root.port) as node, Workers(node.port) as neighbours, Workers(root.port) as direct:
        with closing(Raw(root.port)) as writer, closing(attached(root.port, 77, grace_ms=GRACE_MS)) as false:
            writer.do(set_(b"/key", b"old"))
            assert fetch(false, b"/key") == (True, b"old")
            with kept_alive(false) as told:
                writer.send(set_(b"/key", b"new") + get(b"/key"))
                assert writer.receive_text() == b"new"
            assert told == [RECALL]
        assert root.stats()["refused"] == {"keeps a recalled value": 1}
        # neither by the same trunk nor by another one can it do that again, and honest ones have right answers
        for token in (77, 78):
            with closing(attached(root.port, token, grace_ms=GRACE_MS)) as again:
                assert fetch(again, b"/key", 6) == (False, b"new")
        with closing(Raw(node.port)) as worker, closing(Raw(root.port)) as writer:
            for value in (b"1", b"2", b"3"):
                writer.do(set_(b"/key", value))
                assert worker.get(b"/key") == value
        for each in (neighbours, direct):
            each.advance(10)
        eventually(lambda: not node.proxy.lost, lambda: node.proxy.lost)


@pytest.mark.thorough
def test_what_is_kept_for_who_waits_for_it_is_limited() -> None:
    """A trunk whose write has to wait says more meanwhile than two requests may have."""
    more = b"".join(frame(3 + number, FORWARD, get(b"/" + b"k" * 900)) for number in range(100))
    limits = StoreLimits(request_bytes=2000)
    with (
        StoreServer("127.0.0.1", threads=2, limits=limits) as root,
        Workers(root.port) as direct,
        closing(Raw(root.port)) as first,
        closing(attached(root.port, 77, grace_ms=20_000)) as holding,
        closing(attached(root.port, 78, grace_ms=20_000)) as writer,
    ):
        first.do(set_(b"/key", b"old"))
        assert fetch(holding, b"/key") == (True, b"old")
        writer.send(frame(2, FORWARD, set_(b"/key", b"new")) + more)
        eventually(lambda: root.stats()["refused"] == {"request too long": 1}, root.stats)
        direct.advance(5)
