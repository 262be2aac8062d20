"""What surrounds the load of ``rdzv bench store``, and nodes of ``rendezvous``: each function is a child of its own.

They import what they need when they run, say where they serve, and end when their connection is closed.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import ModuleType
from typing import TYPE_CHECKING

from rdzv_launcher.bench.children import serve
from rdzv_launcher.bench.points import DidNotFinish
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import MissingDependency, RdzvError
from rdzv_plugins.kvstore.native.limits import raise_file_limit

if TYPE_CHECKING:
    from rdzv_launcher.bench._load import Load

LOOPBACK = "127.0.0.1"
_BACKLOG = 2**16
"""The kernel caps it at somaxconn."""


# the native load generator


def load_module() -> ModuleType:
    """The native load generator. Raises ``MissingDependency`` if it was not built."""
    try:
        from rdzv_launcher.bench import _load as module
    except ImportError as error:
        raise MissingDependency(
            f"the load generator of `rdzv bench store` is not part of this installation of rdzv-plugins: {error}",
            remedy="It needs Linux, and a C++20 compiler when rdzv-plugins is installed: apt-get install g++ (or the "
            "like), then pip install --force-reinstall --no-cache-dir --no-binary rdzv-plugins rdzv-plugins.",
        ) from None
    return module


@contextmanager
def load_of(who: str, port: int = 1, *, echo: bool = False) -> Iterator[Load]:
    """Clients of the server at ``port``, or of the address to which each is told to connect.

    What does not end within its limit becomes ``DidNotFinish``; a wrong reply ``RdzvError``, with ``who``.
    """
    module = load_module()
    load: Load = module.Load(LOOPBACK, port, echo=echo)
    try:
        yield load
    except module.TimeLimit as error:
        raise DidNotFinish(str(error)) from None
    except module.LoadError as error:
        raise RdzvError(f"{who}: {error}") from None
    finally:
        load.close()


# servers


def store_server(connection: Connection, threads: int = 0) -> None:
    """Our server, which answers with its statistics."""
    from rdzv_plugins.kvstore.native.server import StoreServer

    raise_file_limit()
    server = StoreServer(LOOPBACK, threads=threads)
    connection.send(server.port)
    serve(connection, server.stats)


def torch_server(connection: Connection, use_libuv: bool) -> None:
    """torch's own."""
    from datetime import timedelta

    from torch.distributed import TCPStore

    raise_file_limit()
    timeout = timedelta(seconds=60)
    store = TCPStore(LOOPBACK, 0, is_master=True, timeout=timeout, wait_for_workers=False, use_libuv=use_libuv)
    connection.send(store.port)
    serve(connection, dict)


def echo_server(connection: Connection) -> None:
    """The bare loop."""
    raise_file_limit()
    listener = socket.create_server((LOOPBACK, 0), backlog=_BACKLOG)
    threading.Thread(target=load_module().serve_echo, args=(listener.fileno(),), daemon=True).start()
    connection.send(listener.getsockname()[1])
    serve(connection, dict)


def relay(connection: Connection, host: str, port: int, delay_s: float) -> None:
    """A way to a server that takes ``delay_s`` in each direction."""
    raise_file_limit()
    listener = socket.create_server((LOOPBACK, 0), backlog=_BACKLOG)
    arguments = (listener.fileno(), host, port, delay_s)
    threading.Thread(target=load_module().serve_delayed, args=arguments, daemon=True).start()
    connection.send(listener.getsockname()[1])
    serve(connection, dict)


def proxies(connection: Connection) -> None:
    """The proxies of some nodes, each with its own threads."""
    from rdzv_plugins.kvstore.native.proxy import StoreProxy

    raise_file_limit()
    found: list[StoreProxy] = []

    def answer(names: list[str], unix: bool, parents: bool, roots: list[int]) -> list[str]:
        """Open one for each name, at the root of the same place; returns where workers and children dial.

        ``parents``: these have other proxies as their children.
        """
        places = []
        for name, root in zip(names, roots, strict=True):
            proxy = StoreProxy(Endpoint(LOOPBACK, root), name=name, leaf=not parents, timeout=60.0)
            found.append(proxy)
            path = f"@rdzv-bench-{os.getpid()}-{name}"
            if unix:
                proxy.listen_unix(path)
            places.append(f"unix:{path}" if unix else f"{LOOPBACK}:{proxy.listen()}")
        return places

    connection.send(os.getpid())
    serve(connection, answer)


def node_store(connection: Connection) -> None:
    """The store as a node's workers see it: a server, and the node's proxy in front of it, at a port and a path."""
    from rdzv_plugins.kvstore.native.proxy import StoreProxy
    from rdzv_plugins.kvstore.native.server import StoreServer

    path = f"@rdzv-bench-{os.getpid()}"
    server = StoreServer(LOOPBACK)
    proxy = StoreProxy(Endpoint(LOOPBACK, server.port))
    port = proxy.listen()
    proxy.listen_unix(path)
    connection.send((port, path))
    serve(connection, dict)
