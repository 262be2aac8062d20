"""Clients that stop in the middle: nobody waits for them, those that stay so are closed, the patient are not."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest
from kits.wire.attack_kit import MIB, PROXY, Bystanders, Crowd, ServerProcess, standing, wait_until
from kits.wire.wire_client import (
    ADD,
    CHECK,
    COMPARE_SET,
    GET,
    LIST_KEYS,
    MULTI_GET,
    MULTI_SET,
    PING,
    SET,
    STOP_WAITING,
    WAIT,
    Closed,
    Raw,
    get,
    keyed,
    multi_set,
    op,
    ping,
    set_,
    text,
    u64,
    validate,
)

pytestmark = pytest.mark.thorough

HELLO = b"\xf7RDZV" + struct.pack("<I", 1)
IMPATIENCE = 2.0
"""Seconds: longer than a busy machine may stop this process between two steps that have to come within them."""
HALF_A_HANDSHAKE = [b"", validate()[:1], validate()[:4], HELLO[:1], HELLO[:8]]
HALF_A_REQUEST = {
    "type": bytes([SET]),
    "length": op(GET, u64(2)[:7]),
    "key": op(GET, u64(100), b"/half"),
    "number": op(ADD, text(b"/half"), b"\1\0\0"),
    "first byte of a value": op(SET, text(b"/half"), u64(8 * MIB), b"x"),
    "part of a value": op(SET, text(b"/half"), u64(8 * MIB), bytes(300_000)),
    "second value": op(COMPARE_SET, text(b"/half"), text(b""), u64(9)),
    "count": op(CHECK, u64(2)[:1]),
    "keys": op(WAIT, u64(131072), text(b"/half") * 20_000),
    "keys to read": op(MULTI_GET, u64(131072), text(b"/half")),
    "pairs": op(MULTI_SET, u64(131072), text(b"/half"), text(b"value")),
    "nonce": op(PING, b"12"),
    "behind a complete one": set_(b"/whole", b"x") + op(GET, u64(100)),
}


@pytest.fixture(params=[1, 4, PROXY], ids=["1 thread", "4 threads", "proxy"])
def threads(request: pytest.FixtureRequest) -> int:
    return int(request.param)


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
        standing(server.port, *HALF_A_REQUEST.values(), count=4) as halves,
        standing(server.port, *HALF_A_HANDSHAKE, validated=False, count=4) as strangers,
    ):
        bystanders.advance(200)
        assert server.stats()["connections"]["open"] == 8 + len(halves + strangers), "the attack was over too soon"
        assert server.growth() < 64 * MIB
        first = 4 * list(HALF_A_REQUEST).index("number")
        for total, client in enumerate(halves[first : first + 4], 1):
            assert client.ask(bytes(5), 8) == u64(total), "the rest of the request is still welcome"
        bystanders.advance(10)


def test_half_sent_requests_are_closed(impatient: ServerProcess) -> None:
    with Bystanders(impatient.port) as bystanders:
        before = bystanders.rounds
        with standing(impatient.port, *HALF_A_REQUEST.values(), count=2) as halves:
            for client in halves:
                assert client.until_close() == b""
        assert bystanders.rounds > before
        impatient.expect_refused("half-sent request", len(halves))
        bystanders.advance(10)


def test_half_a_frame_is_closed(impatient: ServerProcess) -> None:
    frames = [b"\5", struct.pack("<I", 5), struct.pack("<II", 60000, 1)]
    with Bystanders(impatient.port) as bystanders:
        with standing(impatient.port, *(HELLO + frame for frame in frames), validated=False) as halves:
            for client in halves:
                assert client.until_close() == HELLO[1:]
        impatient.expect_refused("half-sent request", len(halves))
        bystanders.advance(10)


def test_who_does_not_greet_is_closed(impatient: ServerProcess) -> None:
    with Bystanders(impatient.port) as bystanders:
        with standing(impatient.port, *HALF_A_HANDSHAKE, validated=False, count=5) as strangers:
            for client in strangers:
                assert client.until_close() == b""
        impatient.expect_refused("no handshake", len(strangers))
        bystanders.advance(10)


def test_a_handshake_byte_by_byte_gains_no_time(impatient: ServerProcess) -> None:
    """Nine bytes at intervals shorter than the limit: it counts from the connection, not from the last byte."""
    with Raw(impatient.port, validated=False) as client:
        client.socket.settimeout(0.4 * IMPATIENCE)
        answer = None
        for number in range(len(HELLO)):
            client.send(HELLO[number : number + 1])
            try:
                answer = client.socket.recv(1)
                break
            except ConnectionResetError:
                answer = b""
                break
            except TimeoutError:
                continue
    assert answer == b"", "it was let in"
    impatient.expect_refused("no handshake", 1)


def ask_and_do_not_read(port: int, size: int, requests: int) -> Crowd:
    """Four clients, each of which asks for far more than any socket buffer holds."""
    crowd = standing(port, set_(b"/asked", b"v" * size), count=4)
    for client in crowd:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.send(get(b"/asked") * requests)
    return crowd


# copied into the replies, shared by the replies: 200 MB and 20 GB are asked for
ASKED = [(4000, 50_000), (MIB, 20_000)]


@pytest.mark.parametrize(("size", "requests"), ASKED, ids=["small values", "large values"])
def test_nobody_waits_for_a_client_that_does_not_read(server: ServerProcess, size: int, requests: int) -> None:
    with Bystanders(server.port) as bystanders, ask_and_do_not_read(server.port, size, requests):
        bystanders.advance(200)
        assert server.stats()["connections"]["open"] == 8 + 4, "the attack was over too soon"
        assert server.growth() < 64 * MIB


@pytest.mark.parametrize(("size", "requests"), ASKED, ids=["small values", "large values"])
def test_a_client_that_does_not_read_is_closed(impatient: ServerProcess, size: int, requests: int) -> None:
    with Bystanders(impatient.port) as bystanders, ask_and_do_not_read(impatient.port, size, requests):
        impatient.expect_refused("does not read", 4)
        assert impatient.stats()["connections"]["open"] == 8
        bystanders.advance(10)


def full(server: ServerProcess) -> bool:
    """All that is on the way holds no more: what is not sent yet does not become less."""
    before: int = server.stats()["bytes"]["buffered"]
    if before:
        time.sleep(0.1)
    return 0 < before <= server.stats()["bytes"]["buffered"]


def test_who_goes_on_asking_and_does_not_read_is_closed(impatient: ServerProcess) -> None:
    """Requests are no progress while replies lie here unread, although there is room for more of them."""
    with Bystanders(impatient.port) as bystanders, standing(impatient.port, set_(b"/asked", b"v" * 4000)) as (client,):
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        while not (full(impatient) or impatient.refused("does not read")):
            client.send(get(b"/asked") * 20)

        def ask_more() -> object:
            lies_here = impatient.stats()["bytes"]["buffered"]  # not if the system made room after all
            client.send(ping(1) if lies_here else get(b"/asked") * 20)
            return impatient.refused("does not read")

        wait_until(ask_more, impatient.stats)
        impatient.expect_refused("does not read", 1)
        bystanders.advance(10)


@pytest.mark.parametrize("request_", ["multi_get", "list_keys"])
def test_too_many_unread_replies_are_closed_at_once(threads: int, request_: str) -> None:
    """One request whose answer exceeds the limit, beyond what the sockets hold."""
    with ServerProcess(threads=threads, output_bytes=MIB) as server, Bystanders(server.port) as bystanders:
        keys = [b"/reply/%d/" % number + b"k" * 3000 for number in range(5000)]
        with Raw(server.port) as client:
            client.send(multi_set((key, bytes(4000)) for key in keys))
            assert client.ask(keyed(MULTI_GET, keys[:200]), 200 * 4008) == text(bytes(4000)) * 200
        with Raw(server.port) as client:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.send(keyed(MULTI_GET, keys) if request_ == "multi_get" else op(LIST_KEYS))
            server.expect_refused("unread replies", 1)
        bystanders.advance(10)


def test_the_patient_are_not_closed(threads: int) -> None:
    """Each lasts longer than all limits, and none stands still for as long as one."""
    limit = 7.0
    with (
        ServerProcess(threads=threads, stall_seconds=limit, handshake_seconds=limit) as server,
        Raw(server.port) as waiting,
        Raw(server.port) as idle,
        Raw(server.port) as pausing,
        Raw(server.port) as reading,
    ):
        waiting.send(keyed(WAIT, [b"/late"]))
        reading.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        size, requests = 4000, 10_000
        reading.send(set_(b"/read", b"r" * size) + get(b"/read") * requests)
        value = bytes(range(256)) * 100
        request = set_(b"/paused", value) + get(b"/paused")
        steps = 20
        received = b""
        for step in range(steps):
            pausing.send(request[len(request) * step // steps : len(request) * (step + 1) // steps])
            received += reading.receive((size + 8) * requests // steps)
            time.sleep(1.4 * limit / steps)  # the behaviour in question, not a wait for something
        assert received == text(b"r" * size) * requests
        assert pausing.receive(len(value) + 8) == text(value)
        idle.send(set_(b"/late", b""))
        assert waiting.receive(1) == STOP_WAITING
        assert server.stats()["refused"] == {}


def cost(server: ServerProcess, waits: int, key: bytes) -> float:
    """Processor seconds for that many waits of one client, and for their end."""
    before = sum(loop["cpu_s"] for loop in server.stats()["loops"])
    with Raw(server.port) as client, Raw(server.port) as other:
        client.send(keyed(WAIT, [key]) * waits)
        client.fence()
        other.send(set_(key, b""))
        assert client.receive(waits) == STOP_WAITING * waits
    return float(sum(loop["cpu_s"] for loop in server.stats()["loops"]) - before)


def test_many_waits_of_one_client_cost_no_more_than_as_many_of_others() -> None:
    with ServerProcess() as server:
        few = cost(server, 8_000, b"/few")
        many = cost(server, 64_000, b"/many")
    assert many < 24 * max(few, 0.01), "the cost grows faster than the number of waits"


def test_too_many_waits_of_one_client_are_refused(server: ServerProcess) -> None:
    with Bystanders(server.port) as bystanders, Raw(server.port) as client:
        client.send(keyed(WAIT, [b"/never"] * 131072))
        client.fence()
        bystanders.advance(10)
        client.send(keyed(WAIT, [b"/never"]))
        with pytest.raises(Closed):
            client.fence()
        server.expect_refused("too many waits", 1)
        bystanders.advance(10)
