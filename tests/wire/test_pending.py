"""Connections that say nothing make room for those who do, of one address and of all, and nobody at work notices."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing

import pytest
from kits.eventually import eventually
from kits.wire import proof_kit as proofs
from kits.wire.attack_kit import Bystanders, ServerProcess, standing, stopped
from kits.wire.proof_kit import MINE, RUN, Client
from kits.wire.wire_client import PATIENCE, Raw, validate

from rdzv_plugins.kvstore.native.server import StoreLimits, StoreServer

pytestmark = pytest.mark.thorough

REASON = "too many pending connections"


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


def test_the_oldest_that_says_nothing_makes_room(threads: int) -> None:
    with (
        ServerProcess(threads=threads, pending_connections=20) as server,
        Bystanders(server.port) as bystanders,
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
        eventually(lambda: server.refused(REASON) + sum(map(is_open, crowd)) == len(crowd), server.stats)
        assert 19 <= sum(map(is_open, crowd)) <= 20
        server.expect_log(REASON)
        # with several loops they are entered a moment apart
        assert all(is_open(each) for each in crowd[-10:])
        assert not any(is_open(each) for each in crowd[:30])
        bystanders.advance(5)


def test_one_address_does_not_take_the_room_of_another(threads: int) -> None:
    with ServerProcess(threads=threads, pending_per_address=10) as server, ExitStack() as held:
        others = silent(held, server.port, 5)
        eventually(lambda: server.stats()["connections"]["pending"] == 5, server.stats)
        crowd = silent(held, server.port, 50, "127.0.0.2")
        eventually(lambda: server.refused(REASON) == 40, server.stats)
        assert all(map(is_open, others))
        assert sum(map(is_open, crowd)) == 10


def test_who_has_spoken_is_none_of_them_though_it_was_not_heard_yet(threads: int) -> None:
    with ServerProcess(threads=threads, pending_connections=5) as server:
        with stopped([server.pid]):
            crowd = standing(server.port, validate(), validated=False, count=40)
        with crowd:
            for client in crowd:
                assert client.fence() == b""
        assert server.stats()["refused"] == {}


def test_a_handshake_has_so_many_bytes() -> None:
    for run, said in (("r" * 600, Client(proofs.STORE, "r" * 600).introduction[:300]), (RUN, b"")):
        limits = StoreLimits(handshake_bytes=256)
        with StoreServer("127.0.0.1", threads=1, limits=limits, tokens=MINE.accepted(run)) as server:
            with closing(Raw(server.port, validated=False) if said else Client().admitted(server.port)) as raw:
                raw.send(said or validate() + bytes(10_000))  # whoever has greeted has other limits
                raw.until_close()
            assert ("handshake too long" in server.stats()["refused"]) is bool(said)
