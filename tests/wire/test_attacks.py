"""Requests that are refused as soon as their length is known, and noise: the sender is closed, nobody else notices."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from itertools import cycle

import pytest
from kits.eventually import eventually
from kits.wire import wire_client as wire
from kits.wire.attack_kit import MIB, PROXY, Bystanders, ServerProcess, repeated
from kits.wire.wire_client import Raw, i64, op, text, u64

KEY, VALUE, KEYS = 8192, 8 * MIB, 131072  # the limits
KEY_FIRST = [
    *(wire.SET, wire.COMPARE_SET, wire.GET, wire.ADD, wire.DELETE_KEY, wire.APPEND),
    *(wire.QUEUE_PUSH, wire.QUEUE_POP, wire.QUEUE_LEN, wire.BARRIER),
]
COUNTED = [wire.CHECK, wire.WAIT, wire.MULTI_GET, wire.MULTI_SET]
REFUSED = text(b"/refused")


def keys_of(length: int) -> list[bytes]:
    announced = u64(length)
    later = [
        op(wire.MULTI_SET, u64(2), text(b"/a"), text(b"1"), announced),
        op(wire.WAIT, u64(2), text(b"/a"), announced),
    ]
    return [op(code, announced) for code in KEY_FIRST] + [op(code, u64(1), announced) for code in COUNTED] + later


def values_of(length: int) -> list[bytes]:
    first = [op(code, REFUSED, u64(length)) for code in (wire.SET, wire.APPEND, wire.QUEUE_PUSH, wire.COMPARE_SET)]
    other = [op(wire.COMPARE_SET, REFUSED, text(b""), u64(length)), op(wire.MULTI_SET, u64(1), REFUSED, u64(length))]
    return first + other


def counts_of(*numbers: int) -> list[bytes]:
    return [op(code, i64(number)) for code in COUNTED for number in numbers]


OFFENCES: dict[str, list[bytes]] = {
    "key too long": [each for length in (KEY + 1, 2**30, 2**63) for each in keys_of(length)],
    "value too long": [each for length in (VALUE + 1, 2**63, 2**64 - 1) for each in values_of(length)],
    "too many keys": counts_of(KEYS + 1, 2**61, -1, -(2**63)),
    "unknown request": [bytes([code]) for code in (19, 20, 127, 128, 0xF7, 255)] + [wire.validate(), wire.validate(1)],
    "not a number": [wire.set_(b"/w", b"word") + each for each in (wire.add(b"/w", 1), wire.barrier(b"/w", 2))],
}
HELLO = b"RDZV" + struct.pack("<I", 1)
BANNERS = {
    "nothing but zeros": b"\0" * 64,
    "http": b"GET / HTTP/1.1\r\nHost: node-1\r\n\r\n",
    "tls": bytes.fromhex("16030100f8010000f40303") + bytes(range(200)),
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "port scanner, empty lines": b"\r\n\r\n",
    "port scanner, rpc": bytes.fromhex("8000002872fe1d130000000000000002000186a00001977c"),
    "redis": b"*1\r\n$4\r\nPING\r\n",
    "other magic": wire.validate(0x3C85F7CF),
    "no handshake": wire.set_(b"/refused", b"x"),
    "framing of another version": b"\xf7RDZV" + struct.pack("<I", 2),
    "framing of another name": b"\xf7RDZW" + struct.pack("<I", 1),
}


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.thorough), 4, PROXY], ids=["1 thread", "4 threads", "proxy"])
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    with ServerProcess(threads=request.param) as process:
        yield process
        assert process.growth() < 64 * MIB


def offend(port: int, data: bytes, *, validated: bool = True) -> bytes:
    """What the server answers before it hangs up."""
    with Raw(port, validated=validated) as client:
        client.send(data)
        return client.until_close()


def expect_only(server: ServerProcess, refused: dict[str, int]) -> None:
    """Exactly so many are closed for these reasons, and nothing of what they asked for was done."""
    eventually(lambda: server.stats()["refused"] == refused, server.stats)
    with Raw(server.port) as client:
        assert client.ask(wire.keyed(wire.CHECK, [b"/refused"]), 1) == b"\1"


def test_what_breaks_a_limit_is_refused_before_it_arrives(server: ServerProcess) -> None:
    with Bystanders(server.port) as bystanders:
        for reason, requests in OFFENCES.items():
            for request in requests:
                assert offend(server.port, request) == b"", (reason, request[:40])
            bystanders.advance(3)
        expect_only(server, {reason: len(requests) for reason, requests in OFFENCES.items()})
        turn = cycle(each for requests in OFFENCES.values() for each in requests)
        with repeated(lambda: offend(server.port, next(turn))) as done:
            while done() < 50:
                bystanders.advance(5)


def test_who_speaks_another_protocol_is_closed(server: ServerProcess) -> None:
    with Bystanders(server.port) as bystanders:
        for name, said in BANNERS.items():
            answer = offend(server.port, said, validated=False)
            assert answer.startswith(b"RDZA") if name == "tls" else answer == b"", name  # that there is no TLS
        for size in (0, 4, 2**24 + 1, 2**32 - 1):
            frame = struct.pack("<IIB", size, 1, 1)
            assert offend(server.port, b"\xf7" + HELLO + frame, validated=False) == HELLO
        bystanders.advance(10)
    expect_only(server, {"TLS offered": 1, "not a store client": len(BANNERS) - 1, "bad frame": 4})


def test_random_bytes_hurt_nobody(server: ServerProcess) -> None:
    """Behind a good handshake they may be a request or the beginning of one; then the client is just not closed."""
    source = random.Random(6)

    def attack() -> None:
        validated = source.random() < 0.7
        with Raw(server.port, validated=validated) as client:
            first = source.randrange(19) if validated else source.randrange(1, 0xF7)
            client.send(bytes([first]) + source.randbytes(source.choice([1, 8, 9, 30, 5000, 70_000])))

    with Bystanders(server.port) as bystanders, repeated(attack) as done:
        while done() < 150:
            bystanders.advance(5)


def test_the_log_names_offenders_and_is_not_flooded() -> None:
    with ServerProcess(threads=2) as server, Raw(server.port) as client:
        host, port = client.socket.getsockname()
        client.ask(wire.ping(4711), 4)
        client.send(op(wire.GET, u64(KEY + 1)))
        client.until_close()
        eventually(lambda: f"from {host}:{port} (pid 4711): key too long\n" in server.log(), server.log)
        began = time.monotonic()
        for _ in range(300):
            offend(server.port, b"\xff", validated=False)
        server.expect_refused("not a store client", 300)
        lines = len(server.log().splitlines())
        assert lines < 10 * (time.monotonic() - began + 8), "ten a second, by the second of each loop"
        with repeated(lambda: offend(server.port, b"\xff", validated=False)):
            server.expect_log("not a store client (")
        assert "more such events were not logged" in server.log()
