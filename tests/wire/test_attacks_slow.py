"""Clients that stop in the middle: nobody waits for them, those that stay so are closed, the patient are not."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest
from kits.wire import wire_client as wire
from kits.wire.attack_kit import MIB, Bystanders, Crowd, ServerProcess, standing
from kits.wire.wire_client import op, text, u64

pytestmark = pytest.mark.thorough

HELLO = b"\xf7RDZV" + struct.pack("<I", 1)
IMPATIENCE = 2.0
"""Seconds: longer than a busy machine may stop this process between two steps that have to come within them."""
HALF = text(b"/half")
HALF_A_HANDSHAKE = [b"", wire.validate()[:1], wire.validate()[:4], HELLO[:1], HELLO[:8]]
HALF_A_NUMBER = op(wire.ADD, HALF, b"\1\0\0")
HALF_A_REQUEST = [
    HALF_A_NUMBER,
    bytes([wire.SET]),
    op(wire.GET, u64(2)[:7]),
    op(wire.GET, u64(100), b"/half"),
    op(wire.SET, HALF, u64(8 * MIB), b"x"),
    op(wire.SET, HALF, u64(8 * MIB), bytes(300_000)),
    op(wire.COMPARE_SET, HALF, text(b""), u64(9)),
    op(wire.CHECK, u64(2)[:1]),
    op(wire.WAIT, u64(131072), HALF * 20_000),
    op(wire.MULTI_GET, u64(131072), HALF),
    op(wire.MULTI_SET, u64(131072), HALF, text(b"value")),
    op(wire.PING, b"12"),
    wire.set_(b"/whole", b"x") + op(wire.GET, u64(100)),
]
HALF_A_FRAME = [HELLO + part for part in (b"\5", struct.pack("<I", 5), struct.pack("<II", 60000, 1))]


@pytest.fixture
def server(threads: int) -> Iterator[ServerProcess]:
    with ServerProcess(threads=threads) as process:
        yield process


@pytest.fixture
def impatient(threads: int) -> Iterator[ServerProcess]:
    with ServerProcess(threads=threads, stall_seconds=IMPATIENCE, handshake_seconds=IMPATIENCE) as process:
        yield process


def test_nobody_waits_for_what_is_half_sent(server: ServerProcess) -> None:
    with (
        Bystanders(server.port) as bystanders,
        standing(server.port, *HALF_A_REQUEST, count=4) as halves,
        standing(server.port, *HALF_A_HANDSHAKE, validated=False, count=4) as strangers,
    ):
        bystanders.advance(200)
        assert server.stats()["connections"]["open"] == 8 + len(halves + strangers), "the attack was over too soon"
        assert server.growth() < 64 * MIB
        for total, client in enumerate(halves[:4], 1):
            assert client.ask(bytes(5), 8) == u64(total), "the rest of the request is still welcome"
        bystanders.advance(10)


@pytest.mark.parametrize(
    ("halves", "validated", "reason", "answer"),
    [
        (HALF_A_REQUEST, True, "half-sent request", b""),
        (HALF_A_FRAME, False, "half-sent request", HELLO[1:]),
        (HALF_A_HANDSHAKE, False, "no handshake", b""),
    ],
    ids=["request", "frame", "handshake"],
)
def test_half_of_something_is_closed(
    impatient: ServerProcess, halves: list[bytes], validated: bool, reason: str, answer: bytes
) -> None:
    with Bystanders(impatient.port) as bystanders:
        with standing(impatient.port, *halves, validated=validated, count=5) as crowd:
            for client in crowd:
                assert client.until_close() == answer
        impatient.expect_refused(reason, len(crowd))
        bystanders.advance(10)


# copied into the replies, shared by the replies: 200 MB and 20 GB are asked for
SIZES = pytest.mark.parametrize(("size", "requests"), [(4000, 50_000), (MIB, 20_000)], ids=["small", "large"])


def ask_and_do_not_read(port: int, size: int, requests: int) -> Crowd:
    """Four clients, each of which asks for far more than any socket buffer holds."""
    crowd = standing(port, wire.set_(b"/asked", b"v" * size), count=4)
    for client in crowd:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.send(wire.get(b"/asked") * requests)
    return crowd


@SIZES
def test_a_client_that_does_not_read_is_closed(impatient: ServerProcess, size: int, requests: int) -> None:
    with Bystanders(impatient.port) as bystanders, ask_and_do_not_read(impatient.port, size, requests):
        impatient.expect_refused("does not read", 4)
        assert impatient.stats()["connections"]["open"] == 8
        bystanders.advance(10)


def test_the_patient_are_not_closed(threads: int) -> None:
    """Each lasts longer than all limits, and none stands still for as long as one."""
    limit, steps, size, requests = 7.0, 20, 4000, 10_000
    with ServerProcess(threads=threads, stall_seconds=limit, handshake_seconds=limit) as server, Crowd() as crowd:
        crowd += standing(server.port, b"", count=4)
        waiting, idle, pausing, reading = crowd
        waiting.send(wire.keyed(wire.WAIT, [b"/late"]))
        reading.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        reading.send(wire.set_(b"/read", b"r" * size) + wire.get(b"/read") * requests)
        value = bytes(range(256)) * 100
        request, received = wire.set_(b"/paused", value) + wire.get(b"/paused"), b""
        for step in range(steps):
            pausing.send(request[len(request) * step // steps : len(request) * (step + 1) // steps])
            received += reading.receive((size + 8) * requests // steps)
            time.sleep(1.4 * limit / steps)  # the behaviour in question, not a wait for something
        assert received == text(b"r" * size) * requests
        assert pausing.receive(len(value) + 8) == text(value)
        idle.send(wire.set_(b"/late", b""))
        assert waiting.receive(1) == wire.STOP_WAITING
        assert server.stats()["refused"] == {}
