"""The servers under test: ours, alone and behind proxies, and torch's libuv server as the measure of what is right."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore

from kits.wire import wire_client as wire
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.native.server import StoreProxy, StoreServer

GRACE = 2 * wire.PATIENCE
"""Seconds: no proxy is given up because a busy machine has stopped this process for a while."""


class Server:
    """Something that listens on ports of 127.0.0.1; which of them a client takes should make no difference to it."""

    def __init__(
        self,
        ports: Sequence[int],
        close: Callable[[], None],
        ours: StoreServer | None = None,
        proxies: Sequence[StoreProxy] = (),
        tiers: int = 0,
    ) -> None:
        self.ports = ports
        self.tiers = tiers
        self.ours = ours
        self.proxies = proxies
        """Those that clients connect to, one for each port; none where they connect to the server itself."""
        self._close = close
        self._connections: list[wire.Raw] = []
        self._turn = 0

    @property
    def port(self) -> int:
        """The first."""
        return self.ports[0]

    def next_port(self) -> int:
        """Each in turn."""
        self._turn += 1
        return self.ports[self._turn % len(self.ports)]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._close()

    def connect(self, number: int | None = None, *, validated: bool = True) -> wire.Raw:
        """A raw connection to the port of that number, or the next; it may be closed before, and is with the server."""
        port = self.next_port() if number is None else self.ports[number % len(self.ports)]
        # what two clients of two proxies do one after the other has an order only at the root; and PING, which torch's
        # client sends only as a greeting, does not wait for a barrier's arrival to get there
        connection = wire.Raw(port, validated=validated, through=bool(self.proxies))
        self._connections.append(connection)
        return connection

    def stats(self) -> list[dict[str, Any]]:
        """Statistics of all that clients connect to."""
        assert self.ours is not None
        return [proxy.stats() for proxy in self.proxies] or [self.ours.stats()]


def start_proxies(count: int, threads: int, tiers: int = 1) -> Server:
    """A server and ``count`` proxies for clients, each below ``tiers - 1`` others; or a server alone."""
    with ExitStack() as stack:
        server = stack.enter_context(StoreServer("127.0.0.1", threads=threads))
        proxies, ports = [], []
        for number in range(count):
            port = server.port
            for tier in range(1, tiers + 1):
                name, leaf = f"node {number}, tier {tier}", tier == tiers
                proxy = stack.enter_context(StoreProxy(Endpoint("127.0.0.1", port), name=name, leaf=leaf, grace=GRACE))
                port = proxy.listen()
            proxies.append(proxy)
            ports.append(port)
        return Server(ports or [server.port], stack.pop_all().close, server, proxies, tiers if count else 0)


def start_torch() -> Server:
    """Torch's server asks a name server about every client whose address comes as ::ffff:127.0.0.1 (up to
    seconds each), but not about 127.0.0.1, which is in /etc/hosts: so it gets a socket of IPv4."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    options = {"is_master": True, "wait_for_workers": False, "use_libuv": True}
    held = [TCPStore("127.0.0.1", port, master_listen_fd=listener.detach(), **options)]
    assert held[0].libuvBackend
    return Server([port], held.clear)


KINDS: dict[str, Callable[[], Server]] = {
    "threads=1": lambda: start_proxies(0, threads=1),
    "threads=4": lambda: start_proxies(0, threads=4),
    "torch": start_torch,
    "proxies": lambda: start_proxies(2, threads=4),
    "tiers": lambda: start_proxies(1, tiers=2, threads=2),
}


@contextmanager
def running(kind: str) -> Iterator[Server]:
    server = KINDS[kind]()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def lifeline(server: Server, seconds: float) -> Iterator[None]:
    """Torch's client has no limit on most reads: end the server under it, so that the test fails and does not hang."""
    timer = threading.Timer(seconds, server.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


LATE = timedelta(seconds=60)  # for what comes


def connect(server: Server, **options: Any) -> TCPStore:
    options = {"wait_for_workers": False, "timeout": LATE} | options
    return TCPStore("127.0.0.1", server.next_port(), **options)


def assert_works(store: TCPStore) -> None:
    """No byte too few or too many came before: the answers are still those to the questions."""
    store.set("works", "yes")
    assert store.get("works") == b"yes"
    assert store.add("sum", 41) == 41
    assert store.add("sum", 1) == 42
