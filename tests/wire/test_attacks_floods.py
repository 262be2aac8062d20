"""Too many connections, no file descriptor, too many bytes in all, too much work: the rest is served.

See also ``native/tests/server_limits_test.cpp``, and ``server_descriptors_test.cpp``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from kits.eventually import eventually
from kits.wire import wire_client as wire
from kits.wire.attack_kit import MIB, Bystanders, Crowd, ServerProcess, standing
from kits.wire.wire_client import Raw, op, text, u64

pytestmark = pytest.mark.thorough

BYSTANDERS = 8
HALF_8_MIB = op(wire.SET, text(b"/half"), u64(8 * MIB), bytes(8 * MIB - 4096))


def connections(server: ServerProcess) -> dict[str, Any]:
    counts: dict[str, Any] = server.stats()["connections"]
    return counts


def cpu_seconds(server: ServerProcess) -> float:
    return float(sum(loop["cpu_s"] for loop in server.stats()["loops"]))


def test_not_even_a_descriptor_to_shed_with(threads: int) -> None:
    """Then newcomers have to wait until there is one; the server neither spins meanwhile nor forgets them."""
    request = wire.validate() + wire.set_(b"/new", b"x") + wire.get(b"/new")
    with ServerProcess(threads=threads, connections=10**6) as server:
        with Bystanders(server.port) as bystanders:
            server.limit_files(3)
            newcomers = standing(server.port, request, validated=False, count=9)
            bystanders.advance(50)
            assert connections(server)["open"] == BYSTANDERS
        with newcomers:
            before = cpu_seconds(server)
            time.sleep(0.5)  # in which it does next to nothing
            assert cpu_seconds(server) - before < 0.1
            server.limit_files(1000)
            for client in newcomers:
                assert client.receive(9) == text(b"x")


def test_announced_values_take_no_memory(threads: int) -> None:
    """8 GiB are announced in all, and one byte of each value comes."""
    value = op(wire.SET, text(b"/a"), u64(8 * MIB), b"x")
    pairs = op(wire.MULTI_SET, u64(131072), text(b"/a"), u64(8 * MIB), b"x")
    with (
        ServerProcess(threads=threads) as server,
        Bystanders(server.port) as bystanders,
        standing(server.port, value, pairs, count=500),
    ):
        bystanders.advance(20)
        assert server.growth() < 64 * MIB


def test_half_sent_values_are_limited_in_all(threads: int) -> None:
    """20 half-sent values of 8 MiB, of which eight are taken. The bystanders' own values come in parts, too."""
    limit = 71 * MIB
    with (
        ServerProcess(threads=threads, buffered_bytes=limit) as server,
        Bystanders(server.port, value=bytes(300_000)) as bystanders,
    ):
        with standing(server.port, HALF_8_MIB, count=20):
            server.expect_refused("buffers full", 12)
            bystanders.advance(20)
            assert server.stats()["bytes"]["buffered"] <= limit
            assert server.growth() < 3 * limit
        eventually(lambda: server.stats()["bytes"]["buffered"] < 4 * MIB, lambda: server.stats()["bytes"])
        server.expect_refused("buffers full", 12)
        bystanders.advance(5)


def one_that_asks_for_a_gib(port: int) -> Crowd:
    return standing(port, wire.set_(b"/k", bytes(8000)) + wire.keyed(wire.MULTI_GET, [b"/k"] * 131072))


def one_that_waits_for_much(port: int) -> Crowd:
    """Each request has no more keys than it may."""
    waits = [wire.keyed(wire.WAIT, [b"/never/%d/%d" % (wait, each) for each in range(60)]) for wait in range(2)]
    return standing(port, b"".join(waits))


def one_that_lists_much(port: int) -> Crowd:
    """64 MB of names, of which a quarter is more than one client is sent."""
    names = [b"/%d/" % number + b"n" * 1000 for number in range(64_000)]
    with Raw(port) as client:
        for start in range(0, len(names), 4000):
            client.send(wire.multi_set((name, b"") for name in names[start : start + 4000]))
        assert client.fence() == b""
    return standing(port, op(wire.LIST_KEYS))


def one_that_sends_much(port: int) -> Crowd:
    """Three values, each of which may be sent."""
    return standing(port, wire.multi_set((b"/sum/%d" % number, bytes(400_000)) for number in range(3)))


@pytest.mark.parametrize(
    ("limit", "attack", "reason", "most"),
    [
        ({"output_bytes": 16 * MIB}, one_that_asks_for_a_gib, "unread replies", 128 * MIB),
        ({"output_bytes": 16 * MIB}, one_that_lists_much, "unread replies", 256 * MIB),
        ({"keys_per_request": 100}, one_that_waits_for_much, "too many waits", 64 * MIB),
        ({"request_bytes": MIB}, one_that_sends_much, "request too long", 64 * MIB),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_one_request_beyond_a_limit(
    threads: int, limit: dict[str, float], attack: Callable[[int], Crowd], reason: str, most: int
) -> None:
    """It is closed while its answer is made, or the request comes."""
    with ServerProcess(threads=threads, **limit) as server, Bystanders(server.port) as bystanders:
        with attack(server.port):
            server.expect_refused(reason, 1)
        bystanders.advance(10)
        assert server.peak_growth() < most
        with Raw(server.port) as client:
            assert client.ask(wire.get(b"/sum/0"), 8) == u64(0), "a part of it was stored"
