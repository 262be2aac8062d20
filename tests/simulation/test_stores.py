"""The simulated store answers as the native server does."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.kvstore.sockets.listening import bind
from rdzv_plugins.kvstore.tcpstore import wire
from rdzv_plugins.options import PortRange
from simulation.machines import Machines
from simulation.stores import StoreServers

PORT = 5
SERVER = "10.0.0.1"
KEYS = (b"/a", b"/b", b"/c", b"")
CLIENTS = 3
LENGTH = 40

History = list[tuple[int, bytes]]
"""Requests, each with the number of the client that makes it."""


def history_of(seed: int) -> History:
    chance = random.Random(seed)

    def text(value: bytes) -> bytes:
        return struct.pack("=Q", len(value)) + value

    def key() -> bytes:
        return text(chance.choice(KEYS))

    def keys() -> bytes:
        number = chance.choice([0, 1, 1, 2, 3])
        return struct.pack("=Q", number) + b"".join(key() for _ in range(number))

    def value() -> bytes:
        return text(chance.choice([b"", b"1", b" -7x", b"9223372036854775807", chance.randbytes(3)]))

    def pairs() -> bytes:
        number = chance.choice([0, 1, 2])
        return struct.pack("=Q", number) + b"".join(key() + value() for _ in range(number))

    kinds: list[tuple[int, Callable[[], bytes]]] = [
        (wire.SET, lambda: key() + value()),
        (wire.COMPARE_SET, lambda: key() + value() + value()),
        (wire.GET, key),
        (wire.ADD, lambda: key() + struct.pack("=q", chance.choice([0, 1, -2, 2**63 - 1, -(2**63)]))),
        (wire.CHECK, keys),
        (wire.WAIT, keys),
        (wire.WAIT, keys),
        (wire.CANCEL_WAIT, bytes),
        (wire.NUM_KEYS, bytes),
        (wire.DELETE_KEY, key),
        (wire.DELETE_KEY, key),
        (wire.MULTI_GET, keys),
        (wire.MULTI_SET, pairs),
    ]
    history = []
    for _ in range(LENGTH):
        number, parts = chance.choice(kinds)
        history.append((chance.randrange(CLIENTS), bytes((number,)) + parts()))
    return history


def answers(history: History, connect: Callable[[], Any]) -> list[list[bytes | None]]:
    """After each request, what every client has got, None if it is hung up on."""
    with ExitStack() as stack:

        def greeted() -> Any:
            connection = stack.enter_context(connect())
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire.greet(connection)
            return connection

        clients = [greeted() for _ in range(CLIENTS)]
        got = []
        for number, (who, request) in enumerate(history):
            clients[who].sendall(request)
            got.append([_until_echo(each, struct.pack("=HH", 0xE7A3, number)) for each in (clients[who], *clients)])
            if got[-1][0] is None:
                clients[who] = greeted()
        return got


def _until_echo(connection: Any, nonce: bytes) -> bytes | None:
    """What it has got: the echo of its ping says that this is all."""
    data = b""
    try:
        connection.sendall(bytes((wire.PING,)) + nonce)
        while not data.endswith(nonce):
            if not (part := connection.recv(1 << 16)):
                return None
            data += part
    except ConnectionError:
        return None
    return data[: -len(nonce)]


@pytest.mark.parametrize(
    "seeds", [range(10), pytest.param(range(10, 100), marks=pytest.mark.thorough)], ids=["few", "many"]
)
def test_random_histories_are_answered_as_by_the_native_server(seeds: range) -> None:
    for seed in seeds:
        history = history_of(seed)
        with StoreServer("127.0.0.1", threads=1) as server:
            real = answers(history, lambda port=server.port: socket.create_connection(("127.0.0.1", port), 60.0))
        assert simulated(seed, history) == real, seed


def simulated(seed: int, history: History) -> list[list[bytes | None]]:
    """The same, of a process that serves the simulated store to another one."""
    machines, found = Machines(seed), list[list[list[bytes | None]]]()
    server, _, serving = machines.boot("server", SERVER)
    client, _, asking = machines.boot("client")

    def serve() -> None:
        listener = bind(SERVER, PortRange(PORT, PORT), "the store", serving)
        StoreServers(machines.kernel)(listen_fd=listener.detach())

    def dialled() -> Any:
        connection = asking.socket()
        connection.connect((SERVER, PORT))
        return connection

    for process, does in ((server, serve), (client, lambda: found.append(answers(history, dialled)))):
        thread = machines.scheduler.spawn(process, "main", does)
        machines.until(lambda thread=thread: thread.done)
    assert machines.scheduler.failed == []
    machines.scheduler.close()
    return found[0]
