"""Nonsense on any side of a proxy: refused with a reason, and nobody else is hurt."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest
from kits.eventually import eventually
from kits.wire import trunk_peer as trunk
from kits.wire import wire_client as wire
from kits.wire.attack_kit import MIB, ServerProcess, Workers
from kits.wire.proxy_kit import Node, advance, trunks
from kits.wire.session_peers import answering
from kits.wire.trunk_peer import ERROR, FORWARD, OK, answer, attach, attached, frame, framed, text

pytestmark = pytest.mark.thorough

KEY = b"/key"
FOUR_GIB = struct.pack("<IIB", 2**32 - 1, 2, FORWARD)
NONSENSE = [  # behind a good attach
    frame(2, 99),
    frame(2, 4, b""),  # an operation of sessions
    attach(7),
    frame(2, FORWARD),
    frame(2, FORWARD, wire.set_(KEY, b"x")[:-1]),
    frame(2, FORWARD, wire.get(KEY) * 2),
    frame(2, FORWARD, wire.keyed(wire.WAIT, [KEY])),
    frame(2, FORWARD, wire.barrier(KEY, 2)),
    frame(2, FORWARD, wire.validate()),
    frame(2, trunk.FOLLOW),
    frame(2, trunk.FOLLOW, struct.pack("<I", 99) + b"/k"),
    frame(2, trunk.FOLLOW, text(KEY) + b"\xff"),
    frame(2, trunk.FOLLOW, text(bytes(8193)) + b"\0"),
    frame(2, trunk.UNFOLLOW, bytes(9)),
    frame(2, trunk.ARRIVE, text(KEY)),
    frame(2, trunk.GIVE_BACK, b"\xff\xff\xff\xff"),
    frame(2, trunk.RECALLED, b"?"),
    frame(2, trunk.RECEIVED, struct.pack("<Q", 2**60)),
    bytes(9),
    FOUR_GIB,
]


@pytest.fixture
def root() -> Iterator[ServerProcess]:
    with ServerProcess(threads=2) as server:
        yield server
        assert server.growth() < 64 * MIB


def names(root: ServerProcess) -> list[str]:
    return [trunk["name"] for trunk in trunks(root.stats())]


def test_a_root_refuses_nonsense_of_a_proxy(root: ServerProcess, others: list[Workers]) -> None:
    for token, nonsense in enumerate(NONSENSE, 1):
        with attached(root.port, token) as client:
            client.send(nonsense)
            client.until_close()
        advance(others)
        assert sum(root.stats()["refused"].values()) == token, nonsense
    assert root.refused("request too long") == 1, "what it announces is not waited for"
    with wire.Raw(root.port) as client:
        assert client.get(KEY) == b"", "it was carried out"
    eventually(lambda: names(root) == ["other"], lambda: names(root))


def test_a_root_refuses_an_attach_that_is_wrong_and_operations_without_one(
    root: ServerProcess, others: list[Workers]
) -> None:
    for wrong in (b"", bytes(4), struct.pack("<QQIB", 1, 0, 2000, 0x80) + text(b"x"), attach(1)[9:] + b"rest"):
        with framed(root.port) as client:
            client.send(frame(1, trunk.ATTACH, wrong))
            assert client.until_close() == b""
    refused = (attach(1, grace_ms=1), attach(1, grace_ms=2**31), attach(5, flags=trunk.AGAIN), attach(6, received=3))
    for each in (*refused, *(frame(1, operation) for operation in range(FORWARD, trunk.REPORT + 1))):
        with framed(root.port) as client:
            client.send(each)
            assert answer(client)[:2] == (1, ERROR)
    advance(others)
    assert [name for name in names(root) if name != "by hand"] == ["other"]


def test_who_takes_over_a_trunk_ends_the_one_before(root: ServerProcess, others: list[Workers]) -> None:
    """As a proxy does that has noticed a break before its root; and a stranger would have to know the token."""
    with attached(root.port, 77, grace_ms=60_000) as first, framed(root.port) as second:
        first.send(frame(2, FORWARD, wire.add(KEY, 1)))
        assert answer(first)[:2] == (2, OK)
        second.send(attach(77, received=1, grace_ms=60_000, flags=trunk.AGAIN | 1))
        assert answer(second)[:2] == (1, OK)
        second.send(frame(3, FORWARD, wire.add(KEY, 1)))
        assert answer(second) == (3, OK, b"\0" + wire.i64(2))
        first.send(frame(3, FORWARD, wire.add(KEY, 1)))
        first.until_close()
        second.send(frame(4, FORWARD, wire.add(KEY, 0)))
        assert answer(second) == (4, OK, b"\0" + wire.i64(2))
    advance(others)


SAYS = {
    "nothing more, and closes": None,
    "random bytes": random.Random(9).randbytes(3000),
    "a frame without length": bytes(9),
    "a frame of 4 GiB": FOUR_GIB,
    "an unknown status": frame(0, 77),
    "an answer that nobody has asked for": frame(4711, OK, b"\0"),
    "a value that nobody follows": frame(4711, trunk.VALUE, b"\1x"),
    "a wake without key": frame(0, trunk.WOKEN),
    "a presence without follow": frame(0, trunk.PRESENT),
    "a recall without key": frame(0, trunk.RECALL),
    "a recall of a key that is too long": frame(0, trunk.RECALL, struct.pack("<I", 1) + bytes(9000)),
    "to have received more than was sent": frame(0, trunk.TAKEN, struct.pack("<Q", 2**60)),
}


@pytest.mark.parametrize("what", SAYS)
def test_a_root_that_talks_nonsense_is_lost(what: str) -> None:
    """It takes the trunk, and then says that, to each connection."""
    said = SAYS[what]
    take = trunk.takes_trunk(said or b"")
    close = lambda connection: (take(connection), connection.shutdown(socket.SHUT_RDWR))  # noqa: E731
    with answering(*[take if said is not None else close] * 3) as port, Node(port, grace=1.0) as node:
        with suppress(ConnectionError), wire.Raw(node.port, validated=False) as worker:  # unless it was lost before
            worker.send(wire.validate() + wire.get(KEY))
            assert worker.until_close() == b""
        node.expect_lost()
