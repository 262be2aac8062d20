"""Too many connections, too few file descriptors, too many bytes in all, too much work: the rest is served."""

from __future__ import annotations

import struct
import time
from contextlib import ExitStack
from typing import Any

import pytest
from kits.wire.attack_kit import MIB, PROXY, Bystanders, Crowd, ServerProcess, repeated, standing, wait_until
from kits.wire.wire_client import (
    LIST_KEYS,
    MULTI_GET,
    MULTI_SET,
    NUM_KEYS,
    SET,
    WAIT,
    Closed,
    Raw,
    get,
    keyed,
    multi_set,
    op,
    set_,
    text,
    u64,
    validate,
)

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.parametrize("threads", [1, 4, PROXY], ids=["1 thread", "4 threads", "proxy"]),
]

BYSTANDERS = 8
HALF_8_MIB = op(SET, text(b"/half"), u64(8 * MIB), bytes(8 * MIB - 4096))


def connections(server: ServerProcess) -> dict[str, Any]:
    counts: dict[str, Any] = server.stats()["connections"]
    return counts


def cpu_seconds(server: ServerProcess) -> float:
    return float(sum(loop["cpu_s"] for loop in server.stats()["loops"]))


def silent(port: int, count: int) -> Crowd:
    return standing(port, b"", validated=False, count=count)


def test_connections_beyond_the_limit_are_closed_at_once(threads: int) -> None:
    with ServerProcess(threads=threads, connections=BYSTANDERS + 20) as server, Bystanders(server.port) as bystanders:
        with standing(server.port, b"", count=20) as held:
            for _ in range(5):
                with silent(server.port, 40) as flood:
                    bystanders.advance(5)
                    for client in flood:
                        assert client.until_close() == b""
            server.expect_refused("too many connections", 200)
            assert connections(server)["open"] == connections(server)["peak"] == BYSTANDERS + 20
            for client in held:
                assert client.fence() == b""
        wait_until(lambda: connections(server)["open"] == BYSTANDERS, lambda: connections(server))
        with Raw(server.port) as client:  # room again
            assert client.fence() == b""
        bystanders.advance(5)


def test_silent_connections_are_closed_after_a_while(threads: int) -> None:
    with ServerProcess(threads=threads, handshake_seconds=2.0) as server, Bystanders(server.port) as bystanders:
        with silent(server.port, 500) as flood:
            bystanders.advance(5)
            for client in flood:
                assert client.until_close() == b""
        server.expect_refused("no handshake", 500)
        bystanders.advance(5)
        assert server.growth() < 64 * MIB


def test_nobody_waits_for_a_storm_of_connections(threads: int) -> None:
    with ServerProcess(threads=threads) as server, Bystanders(server.port) as bystanders:
        with repeated(lambda: silent(server.port, 50).close()) as done:
            while done() < 10:
                bystanders.advance(10)
        wait_until(lambda: connections(server)["open"] == BYSTANDERS, lambda: connections(server))
        assert server.stats()["refused"] == {}


def shed(flood: Crowd) -> int:
    """How many of them have been closed so far."""
    closed = 0
    for client in flood:
        client.socket.setblocking(False)
        try:
            closed += client.until_close() == b""
        except BlockingIOError:
            pass
    return closed


def test_out_of_file_descriptors(threads: int) -> None:
    """Those that find no descriptor are told so by being closed; everything else goes on, and it passes."""
    with (
        ServerProcess(threads=threads, connections=10**6) as server,
        Bystanders(server.port) as bystanders,
    ):
        server.limit_files(100)
        with silent(server.port, 150) as flood:
            wait_until(lambda: server.refused("out of file descriptors") >= 60, lambda: server.stats()["refused"])
            server.expect_log("out of file descriptors")
            bystanders.advance(50)
            # which ones is up to the kernel, and the last of them may still be in its queue
            wait_until(lambda: connections(server)["open"] == BYSTANDERS + len(flood) - shed(flood), server.stats)
            refused, held = shed(flood), BYSTANDERS + len(flood) - shed(flood)
            for _ in range(3):  # still out of them: newcomers do not hang
                wait_until(lambda: connections(server)["open"] == held, server.stats)
                with silent(server.port, 10) as newcomers:
                    # one may get the descriptor with which another thread was about to shed
                    wait_until(lambda: shed(newcomers) + connections(server)["open"] == held + 10, server.stats)
                    assert shed(newcomers) >= 5
                    refused += shed(newcomers)
                bystanders.advance(5)
            server.expect_refused("out of file descriptors", refused)
        wait_until(lambda: connections(server)["open"] == BYSTANDERS, lambda: connections(server))
        with standing(server.port, set_(b"/new", b"x") + get(b"/new"), count=20) as newcomers:
            for client in newcomers:
                assert client.receive(9) == text(b"x")
        assert server.refused("out of file descriptors") == refused
        bystanders.advance(50)


def test_not_even_a_descriptor_to_shed_with(threads: int) -> None:
    """Then newcomers have to wait until there is one; the server neither spins meanwhile nor forgets them."""
    request = validate() + set_(b"/new", b"x") + get(b"/new")
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
    value = op(SET, text(b"/a"), u64(8 * MIB), b"x")
    pairs = op(MULTI_SET, u64(131072), text(b"/a"), u64(8 * MIB), b"x")
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
        wait_until(lambda: server.stats()["bytes"]["buffered"] < 4 * MIB, lambda: server.stats()["bytes"])
        server.expect_refused("buffers full", 12)
        bystanders.advance(5)


def test_full_buffers_close_an_offender_not_a_bystander(threads: int) -> None:
    """What is half-sent is just below the limit; a bystander whose value comes in parts is what exceeds it."""
    with ServerProcess(threads=threads, buffered_bytes=64 * MIB) as server:
        with standing(server.port, HALF_8_MIB, count=8):
            wait_until(lambda: server.stats()["bytes"]["buffered"] >= 8 * (8 * MIB - 4096), server.stats)
            with Bystanders(server.port, value=bytes(300_000)) as bystanders:
                bystanders.advance(20)
        assert set(server.stats()["refused"]) <= {"buffers full"}


def test_many_replies_with_one_value_share_it(threads: int) -> None:
    """60 clients do not read 8 MiB each: that is 480 MiB, or once 8."""
    value = bytes(8 * MIB)
    with ServerProcess(threads=threads) as server, Bystanders(server.port) as bystanders, Raw(server.port) as client:
        client.send(set_(b"/shared", value))
        assert client.fence() == b""
        with standing(server.port, get(b"/shared"), count=60) as held:
            wait_until(lambda: server.stats()["requests"]["get"] >= 60, server.stats)
            bystanders.advance(50)
            assert server.growth() < 64 * MIB
            for reader in held[:5]:
                assert reader.receive(8 + len(value)) == text(value)


def ask_and_do_not_read(server: ServerProcess, keys: list[bytes]) -> Crowd:
    """One client after the other stores 8 MiB under its key and asks for them."""
    crowd = Crowd()
    for number, key in enumerate(keys):
        crowd += standing(server.port, set_(key, bytes([number]) * (8 * MIB)) + get(key))
        wait_until(lambda done=number + 1: asked_or_closed(server) >= done, server.stats)
    return crowd


def asked_or_closed(server: ServerProcess) -> int:
    stats = server.stats()
    return int(stats["requests"]["get"] + sum(stats["refused"].values()))


def test_unread_values_that_nobody_else_has_are_limited(threads: int) -> None:
    """All under the same key: the store holds only the last."""
    limit = 16 * MIB
    with ServerProcess(threads=threads, buffered_bytes=limit) as server:
        with ask_and_do_not_read(server, [b"/same"] * 40), Bystanders(server.port) as bystanders:
            bystanders.advance(20)
            assert server.growth() < 12 * limit
            server.expect_log("buffers full")
        assert set(server.stats()["refused"]) == {"buffers full"}


def test_values_that_are_replaced_before_they_are_read_are_limited(threads: int) -> None:
    """The replies cost nothing as long as the store has the values too, and it forgets them later."""
    limit = 16 * MIB
    keys = [b"/replaced/%d" % number for number in range(20)]
    with ServerProcess(threads=threads, buffered_bytes=limit) as server:
        with ask_and_do_not_read(server, keys), Bystanders(server.port) as bystanders, Raw(server.port) as client:
            assert server.stats()["refused"] == {}
            client.send(multi_set((key, b"") for key in keys))
            assert client.fence() == b""
            wait_until(lambda: server.refused("buffers full") > 10, server.stats)
            wait_until(lambda: server.stats()["bytes"]["buffered"] <= limit, server.stats)
            bystanders.advance(10)
        assert set(server.stats()["refused"]) == {"buffers full"}


def test_a_reply_is_limited_while_it_is_made(threads: int) -> None:
    """1 GiB is asked for, in one request."""
    with ServerProcess(threads=threads, output_bytes=16 * MIB) as server, Bystanders(server.port) as bystanders:
        with standing(server.port, set_(b"/k", bytes(8000)) + keyed(MULTI_GET, [b"/k"] * 131072)):
            server.expect_refused("unread replies", 1)
        bystanders.advance(10)
        assert server.peak_growth() < 128 * MIB


def test_keys_that_a_client_waits_for_are_limited_together(threads: int) -> None:
    """Each request has no more than it may."""
    with ServerProcess(threads=threads, keys_per_request=100) as server, Bystanders(server.port) as bystanders:
        with Raw(server.port) as client:
            for wait in range(2):
                client.send(keyed(WAIT, [b"/never/%d/%d" % (wait, number) for number in range(60)]))
            assert client.until_close() == b""
        server.expect_refused("too many waits", 1)
        bystanders.advance(5)


def test_a_list_of_keys_is_limited_while_it_is_made(threads: int) -> None:
    """64 MB of names, of which a quarter is more than one client is sent."""
    limit, names = 16 * MIB, [b"/%d/" % number + b"n" * 1000 for number in range(64_000)]
    with ServerProcess(threads=threads, output_bytes=limit) as server, Bystanders(server.port) as bystanders:
        with Raw(server.port) as client:
            for start in range(0, len(names), 4000):
                client.send(multi_set((name, b"") for name in names[start : start + 4000]))
            assert client.fence() == b""
        before = server.peak_growth()
        with standing(server.port, op(LIST_KEYS)):
            server.expect_refused("unread replies", 1)
        bystanders.advance(10)
        if threads != PROXY:  # which was sent it by its root, by whose limits it is made
            assert server.peak_growth() - before < 2 * limit


def test_a_request_is_limited_as_a_whole(threads: int) -> None:
    """Three values, each of which may be sent."""
    with ServerProcess(threads=threads, request_bytes=MIB) as server, Bystanders(server.port) as bystanders:
        pairs = [(b"/sum/%d" % number, bytes(400_000)) for number in range(3)]
        with Raw(server.port) as client:
            client.send(multi_set(pairs))
            with pytest.raises(Closed):
                client.fence()
        server.expect_refused("request too long", 1)
        bystanders.advance(10)
        with Raw(server.port) as client:
            assert client.ask(get(b"/sum/0"), 8) == u64(0), "a part of it was stored"
            client.send(multi_set(pairs[:2]))
            assert client.ask(get(b"/sum/1"), 8 + 400_000) == text(pairs[1][1])


def test_nobody_waits_for_requests_that_are_much_work(threads: int) -> None:
    """Many at once, from several clients, with many keys in the store."""
    keys = [b"/key/%d" % number for number in range(100_000)]
    with ServerProcess(threads=threads) as server, ExitStack() as stack:
        counting = [stack.enter_context(Raw(server.port)) for _ in range(4)]
        watching = [stack.enter_context(Raw(server.port, validated=False)) for _ in range(4)]
        counting[0].send(multi_set((key, b"") for key in keys))
        assert counting[0].fence() == b""
        for client in watching:
            client.send(b"\xf7RDZV" + struct.pack("<I", 1))
            client.receive(8)

        def attack() -> None:
            for client in counting:
                client.send(bytes([NUM_KEYS]) * 5000)
            for client in watching:
                client.send(struct.pack("<IIB", 5, 7, 1) * 400)
            for client in counting:
                client.receive(8 * 5000)
            for client in watching:
                for _ in range(400):
                    size, number, status = struct.unpack("<IIB", client.receive(9))
                    assert (number, status) == (7, 0)
                    client.receive(size - 5)

        with Bystanders(server.port) as bystanders, repeated(attack) as done:
            bystanders.advance(100)  # within our patience: one after the other, the attack's would take much longer
            wait_until(done, lambda: "the attack was not completed once")
