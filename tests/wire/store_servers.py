"""The servers under test: ours, and torch's libuv server as the measure of what is right."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import wire_client as wire
from torch.distributed import TCPStore

from rdzv_plugins.kvstore.server import StoreServer


class Server:
    """Something that listens on a port of 127.0.0.1."""

    def __init__(self, port: int, close: Callable[[], None], ours: StoreServer | None = None) -> None:
        self.port = port
        self.ours = ours
        self._close = close
        self._connections: list[wire.Raw] = []

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._close()

    def connect(self, *, validated: bool = True) -> wire.Raw:
        """A raw connection; it may be closed before, and is with the server."""
        connection = wire.Raw(self.port, validated=validated)
        self._connections.append(connection)
        return connection

    def waiters(self, key: str) -> int:
        """How many wait for ``key``, by our own statistics."""
        assert self.ours is not None
        waited = [entry for space in self.ours.stats()["keyspaces"] for entry in space["waited"]]
        return sum(entry["waiters"] for entry in waited if entry["key"] == key)


def start_ours(threads: int) -> Server:
    server = StoreServer("127.0.0.1", 0, threads=threads)
    return Server(server.port, server.close, server)


def start_torch() -> Server:
    """Torch's server asks a name server about every client whose address comes as ::ffff:127.0.0.1 (up to
    seconds each), but not about 127.0.0.1, which is in /etc/hosts: so it gets a socket of IPv4."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    options = {"is_master": True, "wait_for_workers": False, "use_libuv": True}
    held = [TCPStore("127.0.0.1", port, master_listen_fd=listener.detach(), **options)]
    assert held[0].libuvBackend
    return Server(port, held.clear)


KINDS: dict[str, Callable[[], Server]] = {
    "threads=1": lambda: start_ours(1),
    "threads=4": lambda: start_ours(4),
    "torch": start_torch,
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
