"""A proxy that holds a value and does not give it back delays a write for its hold time, whatever it says."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from kits.eventually import eventually
from kits.wire.attack_kit import Bystanders
from kits.wire.proxy_kit import Node
from kits.wire.trunk_peer import FORWARD, OK, RECALL, RECEIVED, TAKEN, answer, attached, frame
from kits.wire.wire_client import PATIENCE, Closed, Raw, get, set_

from rdzv_plugins.kvstore.native.server import StoreLimits, StoreServer

pytestmark = pytest.mark.thorough

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


def test_a_write_waits_no_longer_than_a_value_can_be_held(root: StoreServer) -> None:
    with Node(root.port) as node, Bystanders(node.port) as neighbours, Bystanders(root.port) as direct:
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


def test_one_that_stands_still_is_let_in_again(root: StoreServer) -> None:
    """Its connection is closed, and it goes on with another one as after any break."""
    with closing(Raw(root.port)) as writer, closing(attached(root.port, 77, grace_ms=GRACE_MS)) as frozen:
        writer.do(set_(b"/key", b"old"))
        assert fetch(frozen, b"/key") == (True, b"old")
        writer.send(set_(b"/key", b"new") + get(b"/key"))
        assert writer.receive_text() == b"new"
        frozen.until_close()
        with closing(attached(root.port, 77, grace_ms=GRACE_MS)) as again:
            assert fetch(again, b"/key", 6) == (False, b"new")


def test_what_is_kept_for_who_waits_for_it_is_limited() -> None:
    """A trunk whose write has to wait says more meanwhile than two requests may have."""
    more = b"".join(frame(3 + number, FORWARD, get(b"/" + b"k" * 900)) for number in range(100))
    limits = StoreLimits(request_bytes=2000)
    with (
        StoreServer("127.0.0.1", threads=2, limits=limits) as root,
        Bystanders(root.port) as direct,
        closing(Raw(root.port)) as first,
        closing(attached(root.port, 77, grace_ms=20_000)) as holding,
        closing(attached(root.port, 78, grace_ms=20_000)) as writer,
    ):
        first.do(set_(b"/key", b"old"))
        assert fetch(holding, b"/key") == (True, b"old")
        writer.send(frame(2, FORWARD, set_(b"/key", b"new")) + more)
        eventually(lambda: root.stats()["refused"] == {"request too long": 1}, root.stats)
        direct.advance(5)
