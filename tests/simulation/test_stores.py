"""The simulated store answers as the native server does, and our clients see in it what they see in a real one."""

from __future__ import annotations

import functools
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from rdzv_plugins.backends.static.control import PingResponder, ask
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import StoreLost
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.kvstore.sockets.listening import bind
from rdzv_plugins.kvstore.sockets.reach import CancelToken, try_connect
from rdzv_plugins.kvstore.tcpstore import wire
from rdzv_plugins.kvstore.tcpstore.listener import greet_store
from rdzv_plugins.kvstore.tcpstore.plain_client import KeyWatch, PlainClient
from rdzv_plugins.kvstore.tcpstore.wire import keep_alive
from rdzv_plugins.options import PortRange
from simulation.machines import Machines
from simulation.runtime import SimulatedRuntime
from simulation.scheduler import Process
from simulation.stores import StoreServers

PORT = 5
DAY_S = 86400.0
SERVER = "10.0.0.1"
KEYS = (b"/a", b"/b", b"/c", b"")
CLIENTS = 3
LENGTH = 40

History = list[tuple[int, bytes]]
"""Requests, each with the number of the client that makes it."""


class World(Machines):
    """A process that serves a store, and others."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed)
        self.servers = StoreServers(self.kernel)
        self.server = self.process("server", SERVER)
        self.run(self.serve, self.server)

    def process(self, name: str, host: str) -> SimulatedRuntime:
        return self.boot(name, host)[2]

    def of(self, runtime: SimulatedRuntime) -> Process:
        return next(each for each in self.scheduler.processes if each.host == runtime.gethostname())

    def serve(self) -> None:
        listener = bind(SERVER, PortRange(PORT, PORT), "the store", self.server)
        self.servers(listen_fd=listener.detach())

    def run(self, does: Callable[[], object], runtime: SimulatedRuntime, limit: float = 5000.0) -> Any:
        """What a thread of a process returns or raises, once it has ended."""
        results: list[Any] = []

        def main() -> None:
            try:
                results.append(does())
            except Exception as error:
                results.append(error)

        thread = self.scheduler.spawn(self.of(runtime), "main", main)
        self.scheduler.run(lambda: thread.done, limit)
        assert self.scheduler.failed == []
        return results[0] if results else None


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.scheduler.close()


@pytest.fixture
def client(world: World) -> SimulatedRuntime:
    return world.process("client", "10.0.0.2")


def store_of(runtime: SimulatedRuntime, *, answer: float | None = None, timeout: float = 10.0) -> PlainClient:
    interruption = CancelToken(runtime)
    endpoint = Endpoint(SERVER, PORT)
    connection, reason = try_connect(endpoint, 5.0, greet_store, interruption=interruption, runtime=runtime)
    assert connection is not None, reason
    keep_alive(connection)
    return PlainClient(
        connection, prefix="p", timeout=timeout, interruption=interruption, answer=answer, runtime=runtime
    )


# The same answers


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
        world = World(seed)
        client = world.process("client", "10.0.0.2")
        simulated = world.run(functools.partial(answers, history, lambda c=client: _dialled(c)), client)
        world.scheduler.close()
        assert simulated == real, seed


def _dialled(runtime: SimulatedRuntime) -> Any:
    connection = runtime.socket()
    connection.connect((SERVER, PORT))
    return connection


# What our clients see


def test_an_agent_answers_however_long_nobody_has_asked(world: World, client: SimulatedRuntime) -> None:
    """Whether it lives, days after the last question. A wait for one that has ended says nothing about the store."""
    agent, lost = world.process("agent", "10.0.0.3"), list[Exception]()

    def lives() -> None:
        presence = PingResponder(store_of(agent), Endpoint(SERVER, PORT), "p", "a", lost.append, agent)
        agent.sleep(4 * DAY_S)
        presence.stop()

    def asks() -> tuple[set[str], ...]:
        client.sleep(3 * DAY_S)
        first = ask(store_of(client), ["a"], 10.0, client)
        client.sleep(2 * DAY_S)
        return first, ask(store_of(client), ["a"], 10.0, client)

    world.scheduler.spawn(world.of(agent), "main", lives)
    assert world.run(asks, client, 6 * DAY_S) == ({"a"}, set())
    assert lost == []


def test_a_process_that_stands_still_answers_later(world: World, client: SimulatedRuntime) -> None:
    """Its kernel takes connections meanwhile, but no greeting is answered."""
    server = world.of(world.server)

    def asks() -> tuple[str, float, str]:
        store = store_of(client, timeout=100.0)
        store.set("k", "1")
        store.check(["k"])
        world.scheduler.freeze(server)
        world.scheduler.at(world.scheduler.now + 30.0, lambda: world.scheduler.thaw(server))
        _, reason = try_connect(Endpoint(SERVER, PORT), 5.0, greet_store, runtime=client)
        began = client.monotonic()
        return store.get("k").decode(), client.monotonic() - began, reason

    value, took, reason = world.run(asks, client)
    assert (value, bool(reason)) == ("1", True)
    assert took > 20.0


@pytest.mark.parametrize("happens", ["crash", "cut"])
def test_a_host_that_is_silent_is_noticed_by_who_waits_and_by_who_has_sent(
    world: World, client: SimulatedRuntime, happens: str
) -> None:
    """As TCP does it, with the options that are set: else bytes would be sent again for a quarter of an hour."""
    noticed = list[float]()

    def asks() -> float:
        store = store_of(client)
        KeyWatch(SERVER, PORT, "k", lambda value: None, lambda error: noticed.append(client.monotonic()), client)
        client.sleep(1.0)
        if happens == "crash":
            world.network.crash(SERVER)
        else:
            world.network.cut("10.0.0.2", SERVER)
        began = client.monotonic()
        noticed.append(began)
        with pytest.raises(StoreLost):
            store.add("k", 1)
        took = client.monotonic() - began
        client.sleep(1.0)
        return took

    assert world.run(asks, client) == pytest.approx(40.0)
    assert noticed[1] - noticed[0] == pytest.approx(40.0)
