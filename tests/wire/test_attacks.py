"""Requests that are refused as soon as their length is known, and noise: the sender is closed, nobody else notices."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from itertools import cycle

import pytest
from kits.wire.attack_kit import MIB, PROXY, Bystanders, ServerProcess, repeated
from kits.wire.wire_client import (
    ADD,
    APPEND,
    BARRIER,
    CHECK,
    COMPARE_SET,
    DELETE_KEY,
    GET,
    MULTI_GET,
    MULTI_SET,
    QUEUE_LEN,
    QUEUE_POP,
    QUEUE_PUSH,
    SET,
    WAIT,
    Raw,
    add,
    barrier,
    get,
    i64,
    keyed,
    multi_set,
    op,
    set_,
    text,
    u64,
    validate,
)

KEY, VALUE, KEYS = 8192, 8 * MIB, 131072  # the limits
FEW = u64(1)
KEY_FIRST = [SET, COMPARE_SET, GET, ADD, DELETE_KEY, APPEND, QUEUE_PUSH, QUEUE_POP, QUEUE_LEN, BARRIER]
COUNTED = [CHECK, WAIT, MULTI_GET, MULTI_SET]


def lengths_of_keys(length: bytes) -> list[bytes]:
    later = [op(MULTI_SET, u64(2), text(b"/a"), text(b"1"), length), op(WAIT, u64(2), text(b"/a"), length)]
    return [op(code, length) for code in KEY_FIRST] + [op(code, FEW, length) for code in COUNTED] + later


def lengths_of_values(length: bytes) -> list[bytes]:
    key = text(b"/refused")
    first = [op(code, key, length) for code in (SET, APPEND, QUEUE_PUSH, COMPARE_SET)]
    return [*first, op(COMPARE_SET, key, text(b""), length), op(MULTI_SET, FEW, key, length)]


ANNOUNCED = {
    "key of 1 GiB": ("key too long", lengths_of_keys(u64(2**30))),
    "key of 2**63": ("key too long", lengths_of_keys(u64(2**63))),
    "key a byte too long": ("key too long", lengths_of_keys(u64(KEY + 1))),
    "value of 2**63": ("value too long", lengths_of_values(u64(2**63))),
    "value of 2**64-1": ("value too long", lengths_of_values(u64(2**64 - 1))),
    "value a byte too long": ("value too long", lengths_of_values(u64(VALUE + 1))),
    "131073 keys": ("too many keys", [op(code, u64(KEYS + 1)) for code in COUNTED]),
    "2**61 keys": ("too many keys", [op(code, u64(2**61)) for code in COUNTED]),
    "negative count": ("too many keys", [op(code, i64(n)) for code in COUNTED for n in (-1, -(2**63))]),
    "unknown request": ("unknown request", [bytes([code]) for code in (19, 20, 127, 128, 0xF7, 255)]),
    "not a number": ("not a number", [set_(b"/w", b"word") + r for r in (add(b"/w", 1), barrier(b"/w", 2))]),
    "second handshake": ("unknown request", [validate(), validate(1)]),
}
BANNERS = {
    "nothing but zeros": b"\0" * 64,
    "http": b"GET / HTTP/1.1\r\nHost: node-1\r\n\r\n",
    "tls": bytes.fromhex("16030100f8010000f40303") + bytes(range(200)),
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "port scanner, empty lines": b"\r\n\r\n",
    "port scanner, rpc": bytes.fromhex("8000002872fe1d130000000000000002000186a00001977c"),
    "redis": b"*1\r\n$4\r\nPING\r\n",
    "other magic": validate(0x3C85F7CF),
    "no handshake": set_(b"/unvalidated", b"x"),
    "framing of another version": b"\xf7RDZV" + struct.pack("<I", 2),
    "framing of another name": b"\xf7RDZW" + struct.pack("<I", 1),
}


@pytest.fixture(params=[1, 4, PROXY], ids=["1 thread", "4 threads", "proxy"])
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    with ServerProcess(threads=request.param) as process:
        yield process


def offend(port: int, data: bytes, *, validated: bool = True) -> bytes:
    """What the server answers before it hangs up."""
    with Raw(port, validated=validated) as client:
        client.send(data)
        return client.until_close()


@pytest.mark.parametrize("attack", ANNOUNCED)
def test_what_breaks_a_limit_is_refused_before_it_arrives(server: ServerProcess, attack: str) -> None:
    reason, requests = ANNOUNCED[attack]
    with Bystanders(server.port) as bystanders:
        for request in requests:
            assert offend(server.port, request) == b"", request[:40]
            bystanders.advance(3)
        server.expect_refused(reason, len(requests))
        with Raw(server.port) as client:
            assert client.ask(keyed(CHECK, [b"/refused"]), 1) == b"\1", "a refused request was carried out"
        turn = cycle(requests)
        with repeated(lambda: offend(server.port, next(turn))) as done:
            while done() < 10:
                bystanders.advance(10)
    assert server.growth() < 64 * MIB


@pytest.mark.parametrize("attack", BANNERS)
def test_who_speaks_another_protocol_is_closed(server: ServerProcess, attack: str) -> None:
    with Bystanders(server.port) as bystanders:
        bystanders.advance(10)
        answer = offend(server.port, BANNERS[attack], validated=False)
        assert answer.startswith(b"RDZA") if attack == "tls" else answer == b"", (
            "who offers TLS is told that there is none"
        )
        bystanders.advance(10)
    server.expect_refused("TLS offered" if attack == "tls" else "not a store client", 1)
    with Raw(server.port) as client:
        assert client.ask(get(b"/unvalidated"), 8) == u64(0)


@pytest.mark.parametrize("seed", range(6))
def test_random_bytes_hurt_nobody(server: ServerProcess, seed: int) -> None:
    """Behind a good handshake they may be a request or the beginning of one; then the client is just not closed."""
    source = random.Random(seed)

    def attack() -> None:
        validated = source.random() < 0.7
        with Raw(server.port, validated=validated) as client:
            first = source.randrange(19) if validated else source.randrange(1, 0xF7)
            client.send(bytes([first]) + source.randbytes(source.choice([1, 8, 9, 30, 5000, 70_000])))

    with Bystanders(server.port) as bystanders, repeated(attack) as done:
        while done() < 30:
            bystanders.advance(5)
    assert server.growth() < 64 * MIB


@pytest.mark.parametrize("frame", [0, 4, 2**24 + 1, 2**32 - 1])
def test_frame_of_a_wrong_length_is_refused(server: ServerProcess, frame: int) -> None:
    hello = b"RDZV" + struct.pack("<I", 1)
    with Bystanders(server.port) as bystanders:
        answer = offend(server.port, b"\xf7" + hello + struct.pack("<IIB", frame, 1, 1), validated=False)
        bystanders.advance(10)
    assert answer == hello
    server.expect_refused("bad frame", 1)


def test_the_largest_that_is_allowed_is_served(server: ServerProcess) -> None:
    key, value = b"/" + b"k" * (KEY - 1), b"v" * VALUE
    with Bystanders(server.port) as bystanders, Raw(server.port) as client:
        client.send(set_(key, value))
        assert client.ask(get(key), 8 + VALUE) == text(value)
        assert client.ask(keyed(CHECK, [key] * 1000), 1) == b"\0"
        many = [b"/many/%d" % number for number in range(KEYS)]
        client.send(multi_set((name, b"") for name in many))
        assert client.ask(keyed(MULTI_GET, many), 8 * KEYS) == bytes(8 * KEYS)
        assert client.ask(keyed(WAIT, many), 1) == b"\0"
        bystanders.advance(10)


def test_the_log_names_the_offender() -> None:
    with ServerProcess() as server, Raw(server.port) as client:
        host, port = client.socket.getsockname()
        client.ask(b"\x0d" + struct.pack("<I", 4711), 4)
        client.send(op(GET, u64(KEY + 1)))
        client.until_close()
        server.expect_refused("key too long", 1)
        assert f"from {host}:{port} (pid 4711): key too long\n" in server.log()


def test_a_flood_of_offences_does_not_flood_the_log() -> None:
    with ServerProcess(threads=2) as server:
        began = time.monotonic()
        for _ in range(400):
            offend(server.port, b"\xff", validated=False)
        server.expect_refused("not a store client", 400)
        lines = len(server.log().splitlines())
        assert lines < 10 * (time.monotonic() - began + 8), "ten a second, by the second of each loop"
        with repeated(lambda: offend(server.port, b"\xff", validated=False)):
            server.expect_log("not a store client (")
        assert "more such events were not logged" in server.log()
