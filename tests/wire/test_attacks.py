"""Requests that are refused as soon as their length is known, halves, noise and silence: the sender is closed, others
go on.

Each way to be closed has a test in ``native/tests`` (``server_limits_test``, ``scanner_test``, ``conversation_test``).
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import cycle

import pytest
from kits.eventually import eventually
from kits.wire import proof_kit as proofs
from kits.wire import wire_client as wire
from kits.wire.attack_kit import MIB, ServerProcess, Workers, repeated, standing, stopped
from kits.wire.proof_kit import MINE, RUN, Client
from kits.wire.wire_client import PATIENCE, Raw, i64, op, text, u64

from rdzv_plugins.kvstore.native.limits import StoreLimits
from rdzv_plugins.kvstore.native.server import StoreServer

KEY, VALUE, KEYS = 8192, 8 * MIB, 131072  # the limits
KEY_FIRST = [
    *(wire.SET, wire.COMPARE_SET, wire.GET, wire.ADD, wire.DELETE_KEY, wire.APPEND),
    *(wire.QUEUE_PUSH, wire.QUEUE_POP, wire.QUEUE_LEN, wire.BARRIER),
]
COUNTED = [wire.CHECK, wire.WAIT, wire.MULTI_GET, wire.MULTI_SET]
REFUSED = text(b"/refused")


def keys_of(length: int) -> list[bytes]:
    announced = u64(length)
    return [op(code, announced) for code in KEY_FIRST] + [op(code, u64(1), announced) for code in COUNTED]


def values_of(length: int) -> list[bytes]:
    first = [op(code, REFUSED, u64(length)) for code in (wire.SET, wire.APPEND, wire.QUEUE_PUSH, wire.COMPARE_SET)]
    other = [op(wire.COMPARE_SET, REFUSED, text(b""), u64(length)), op(wire.MULTI_SET, u64(1), REFUSED, u64(length))]
    return first + other


OFFENCES: dict[str, list[bytes]] = {
    "key too long": [each for length in (KEY + 1, 2**63) for each in keys_of(length)],
    "value too long": [each for length in (VALUE + 1, 2**64 - 1) for each in values_of(length)],
    "too many keys": [op(code, i64(number)) for code in COUNTED for number in (KEYS + 1, 2**61, -1)],
    "unknown request": [bytes([code]) for code in (19, 20, 127, 128, 0xF7, 255)] + [wire.validate(), wire.validate(1)],
    "not a number": [wire.set_(b"/w", b"word") + each for each in (wire.add(b"/w", 1), wire.barrier(b"/w", 2))],
}
HALF = text(b"/half")
HALF_A_REQUEST = [
    op(wire.ADD, HALF, b"\1\0\0"),
    op(wire.GET, u64(100), b"/half"),
    op(wire.SET, HALF, u64(VALUE), bytes(300_000)),
    op(wire.WAIT, u64(KEYS), HALF * 20_000),
    op(wire.MULTI_SET, u64(KEYS), HALF, text(b"value")),
]


@pytest.fixture
def server(threads: int) -> Iterator[ServerProcess]:
    with ServerProcess(threads=threads) as process:
        yield process
        assert process.growth() < 64 * MIB


def offend(port: int, data: bytes) -> bytes:
    """What the server answers before it hangs up."""
    with Raw(port) as client:
        client.send(data)
        return client.until_close()


def test_what_breaks_a_limit_is_refused_before_it_arrives(server: ServerProcess) -> None:
    with Workers(server.port) as bystanders:
        for reason, requests in OFFENCES.items():
            for request in requests:
                assert offend(server.port, request) == b"", (reason, request[:40])
            bystanders.advance(3)
        expected = {reason: len(requests) for reason, requests in OFFENCES.items()}
        eventually(lambda: server.stats()["refused"] == expected, server.stats)
        with Raw(server.port) as client:
            assert client.ask(wire.keyed(wire.CHECK, [b"/refused"]), 1) == b"\1", "it was done in part"
        turn = cycle(each for requests in OFFENCES.values() for each in requests)
        with repeated(lambda: offend(server.port, next(turn))) as done:
            while done() < 50:
                bystanders.advance(5)


def test_nobody_waits_for_what_is_half_sent(server: ServerProcess) -> None:
    with (
        Workers(server.port) as bystanders,
        standing(server.port, *HALF_A_REQUEST, count=4) as halves,
        standing(server.port, b"", wire.validate()[:4], validated=False, count=4),
    ):
        bystanders.advance(20)
        for total, client in enumerate(halves[:: len(HALF_A_REQUEST)], 1):
            assert client.ask(bytes(5), 8) == u64(total), "the rest of the request is still welcome"
        bystanders.advance(5)


def test_random_bytes_hurt_nobody(server: ServerProcess) -> None:
    """Behind a good handshake they may be a request or the beginning of one; then the client is just not closed."""
    source = random.Random(6)

    def attack() -> None:
        validated = source.random() < 0.7
        with Raw(server.port, validated=validated) as client:
            first = source.randrange(19) if validated else source.randrange(1, 0xF7)
            client.send(bytes([first]) + source.randbytes(source.choice([1, 8, 9, 30, 5000, 70_000])))

    with Workers(server.port) as bystanders, repeated(attack) as done:
        while done() < 150:
            bystanders.advance(5)


def test_the_log_names_offenders() -> None:
    with ServerProcess(threads=2) as server, Raw(server.port) as client:
        host, port = client.socket.getsockname()
        client.ask(wire.ping(4711), 4)
        client.send(op(wire.GET, u64(KEY + 1)))
        client.until_close()
        eventually(lambda: f"from {host}:{port} (pid 4711): key too long\n" in server.log(), server.log)


PENDING = "too many pending connections"


def silent(held: ExitStack, port: int, count: int, source: str = "127.0.0.1") -> list[socket.socket]:
    """That many connections of an address, which say nothing."""
    make = socket.create_connection
    return [held.enter_context(make(("127.0.0.1", port), PATIENCE, (source, 0))) for _ in range(count)]


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


@pytest.mark.thorough
def test_the_oldest_that_says_nothing_makes_room(threads: int) -> None:
    with (
        ServerProcess(threads=threads, pending_connections=20) as server,
        Workers(server.port) as bystanders,
        ExitStack() as held,
    ):
        crowd: list[socket.socket] = []
        for turn in range(1, 7):
            crowd += silent(held, server.port, 10)
            least = min(10 * turn, 19)
            eventually(lambda least=least: server.stats()["connections"]["pending"] >= least, server.stats)  # type: ignore[misc]
            bystanders.advance(2)
            with Raw(server.port) as client:  # who speaks is served, and is none of them
                assert client.fence() == b""
        # each that spoke was one of them for a moment, and had its place when it was one no more
        eventually(lambda: server.refused(PENDING) + sum(map(is_open, crowd)) == len(crowd), server.stats)
        assert 19 <= sum(map(is_open, crowd)) <= 20
        # with several loops they are entered a moment apart
        assert all(is_open(each) for each in crowd[-10:])
        assert not any(is_open(each) for each in crowd[:30])
        bystanders.advance(5)


@pytest.mark.thorough
def test_one_address_does_not_take_the_room_of_another(threads: int) -> None:
    with ServerProcess(threads=threads, pending_per_address=10) as server, ExitStack() as held:
        others = silent(held, server.port, 5)
        eventually(lambda: server.stats()["connections"]["pending"] == 5, server.stats)
        crowd = silent(held, server.port, 50, "127.0.0.2")
        eventually(lambda: server.refused(PENDING) == 40, server.stats)
        assert all(map(is_open, others))
        assert sum(map(is_open, crowd)) == 10


@pytest.mark.thorough
def test_who_has_spoken_is_none_of_them_though_it_was_not_heard_yet(threads: int) -> None:
    with ServerProcess(threads=threads, pending_connections=5) as server:
        with stopped(server.pid):
            crowd = standing(server.port, wire.validate(), validated=False, count=40)
        with crowd:
            for client in crowd:
                assert client.fence() == b""
        assert server.stats()["refused"] == {}


@pytest.mark.thorough
def test_a_handshake_has_so_many_bytes() -> None:
    limits = StoreLimits(handshake_bytes=256)
    for run, said in (("r" * 600, Client(proofs.STORE, "r" * 600).introduction[:300]), (RUN, b"")):
        with StoreServer("127.0.0.1", threads=1, limits=limits, tokens=MINE.accepted(run)) as server:
            with closing(Raw(server.port, validated=False) if said else Client().admitted(server.port)) as raw:
                raw.send(said or wire.validate() + bytes(10_000))  # whoever has greeted has other limits
                raw.until_close()
            assert ("handshake too long" in server.stats()["refused"]) is bool(said)
