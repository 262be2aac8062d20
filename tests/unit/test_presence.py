"""Does an agent live? It answers whenever it is asked, for as long as there is a store; and its end is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from kits.eventually import eventually

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointLost
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.kvstore.sockets.interruption import Interruption
from rdzv_plugins.kvstore.sockets.reach import reach
from rdzv_plugins.kvstore.tcpstore.greeting import greet_store
from rdzv_plugins.kvstore.tcpstore.plain_client import PlainClient
from rdzv_plugins.rounds.presence import Presence, ask
from rdzv_plugins.runtime import SYSTEM

PATIENCE_S = 60.0


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1") as server:
        yield server


def client(port: int) -> closing[PlainClient]:
    connection = reach(Endpoint("127.0.0.1", port), PATIENCE_S, "the store", greet_store)
    return closing(PlainClient(connection, prefix="p", timeout=PATIENCE_S, interruption=Interruption()))


class Agent:
    """An agent that answers, and what it is told of its end."""

    def __init__(self, port: int, name: str = "a", wait: float = PATIENCE_S) -> None:
        self.lost: list[Exception] = []
        self.told = threading.Event()
        self.port, self.name, self.wait = port, name, wait

    def __enter__(self) -> Agent:
        with ExitStack() as stack:
            store = stack.enter_context(client(self.port))
            endpoint = Endpoint("127.0.0.1", self.port)
            presence = Presence(store, endpoint, "p", self.name, self._on_lost, SYSTEM, wait=self.wait)
            stack.callback(presence.stop)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def _on_lost(self, error: Exception) -> None:
        self.lost.append(error)
        self.told.set()


def test_it_answers_however_long_nobody_has_asked(server: StoreServer) -> None:
    with client(server.port) as store, Agent(server.port, wait=0.01) as agent:
        for _ in range(3):  # it hears of a number without a question only when a wait of its own is over
            asked = store.add("asked", 1)
            eventually(lambda n=asked: int(store.get("alive/a")) >= n, lambda: "it has ended")
        assert ask(store, ["a"], PATIENCE_S) == {"a"}
    assert not agent.lost


def test_it_answers_on_another_connection_when_one_is_lost(server: StoreServer) -> None:
    port = server.port
    with Agent(port) as agent:
        server.close()
        with StoreServer("127.0.0.1", port) as again, client(again.port) as store:
            store.wait(["alive/a"])
            assert ask(store, ["a"], PATIENCE_S) == {"a"}
            assert not agent.lost


def test_its_end_is_told_when_nobody_serves_any_more(server: StoreServer) -> None:
    with Agent(server.port) as agent:
        server.close()
        assert agent.told.wait(PATIENCE_S)
    assert isinstance(agent.lost[0], EndpointLost)
    assert len(agent.lost) == 1


def test_who_is_silent_who_has_left_and_who_was_never_there(server: StoreServer) -> None:
    with client(server.port) as store:
        with Agent(server.port, "left"):
            store.set("alive/silent", "0")
        assert ask(store, ["left", "never"], PATIENCE_S) == set(), "nobody is waited for"
        with Agent(server.port, "a"), Agent(server.port, "b"):
            assert ask(store, ["a", "silent", "left", "never", "b"], 0.2) == {"a", "b"}
            assert ask(store, ["b"], PATIENCE_S) == {"b"}
            eventually(lambda: not store.check(["ask/a"]) and not store.check(["ask/b"]), lambda: "they stay")
