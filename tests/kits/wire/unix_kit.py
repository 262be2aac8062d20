"""A store that is reached by TCP and by a Unix socket, and torch's client of it, moved from one to the other."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore

from kits.wire.store_servers import GRACE, Server
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.native.server import StoreProxy, StoreServer
from rdzv_plugins.torchrun.worker_transport import move, open_sockets


class Reached(Server):
    """A node's proxy, as workers get to see it."""

    def __init__(self, root: StoreServer, proxy: StoreProxy, path: str) -> None:
        super().__init__([proxy.listen()], proxy.close, root, [proxy])
        proxy.listen_unix(path)
        self.proxy, self.path = proxy, path

    def connections(self) -> tuple[int, int]:
        """Of workers: by TCP, and by the Unix socket."""
        return _by_tcp(self.port), by_unix(self.path)


@contextmanager
def reached() -> Iterator[Reached]:
    """With an abstract Unix socket."""
    with StoreServer("127.0.0.1") as root, StoreProxy(Endpoint("127.0.0.1", root.port), grace=GRACE) as proxy:
        server = Reached(root, proxy, unused())
        try:
            yield server
        finally:
            server.close()


def unused() -> str:
    """The name of an abstract socket."""
    return f"@rdzv-test-{uuid.uuid4().hex}"


def moved(server: Reached) -> TCPStore:
    """torch's client over the Unix socket."""
    before = open_sockets()
    store = by_tcp(server.port)
    move(store, server.path, before)
    return store


def by_tcp(port: int) -> TCPStore:
    """torch's client as it is."""
    return TCPStore("127.0.0.1", port, wait_for_workers=False, timeout=timedelta(seconds=60))


def by_unix(path: str) -> int:
    """How many connections to a Unix socket were accepted and are open, as the kernel sees it."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return sum(row[5] == "03" and row[7:] == [path] for row in rows)


def _by_tcp(port: int) -> int:
    count = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
        count += sum(row[3] == "01" and int(row[2].rpartition(":")[2], 16) == port for row in rows)
    return count


@contextmanager
def listening(backlog: int = 8) -> Iterator[tuple[str, socket.socket]]:
    """An abstract socket on which nobody serves a store."""
    path = unused()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + path[1:])
        listener.listen(backlog)
        yield path, listener
