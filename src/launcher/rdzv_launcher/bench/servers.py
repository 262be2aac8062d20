"""What surrounds the load of ``rdzv bench store``: each function but the first two is a child process of its own.

They import what they need when they run, say where they serve, and end when their connection is closed.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
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
def load_of(who: str, places: Sequence[str], *, echo: bool = False) -> Iterator[Load]:
    """Clients of the servers at these places, as many of each.

    What does not end within its limit becomes ``DidNotFinish``; a wrong reply ``RdzvError``, with ``who``.
    """
    module = load_module()
    load: Load = module.Load(places, echo=echo)
    try:
        yield load
    except module.TimeLimit as error:
        raise DidNotFinish(str(error)) from None
    except module.LoadError as error:
        raise RdzvError(f"{who}: {error}") from None
    finally:
        load.close()


def store_server(connection: Connection, threads: int = 0) -> None:
    """Our server, which answers with its statistics."""
    from rdzv_plugins.kvstore.native.server import StoreServer

    raise_file_limit()
    server = StoreServer(LOOPBACK, threads=threads)
    serve(connection, server.port, server.stats)


def torch_server(connection: Connection, use_libuv: bool) -> None:
    """torch's own."""
    from datetime import timedelta

    from torch.distributed import TCPStore

    raise_file_limit()
    timeout = timedelta(seconds=60)
    store = TCPStore(LOOPBACK, 0, is_master=True, timeout=timeout, wait_for_workers=False, use_libuv=use_libuv)
    serve(connection, store.port)


def native_server(connection: Connection, function: str, *arguments: object) -> None:
    """A server of the load generator: the bare loop, or the relay, a path to a server that takes its time."""
    raise_file_limit()
    listener = socket.create_server((LOOPBACK, 0), backlog=_BACKLOG)
    target = getattr(load_module(), function)
    threading.Thread(target=target, args=(listener.fileno(), *arguments), daemon=True).start()
    serve(connection, listener.getsockname()[1])


def proxies(connection: Connection, root: int, nodes: int) -> None:
    """The proxies of this many nodes, each with its own threads; says at which port and path each serves."""
    from rdzv_plugins.kvstore.native.proxy import StoreProxy

    raise_file_limit()
    at = Endpoint(LOOPBACK, root)
    found = [StoreProxy(at, name=f"node-{node}", leaf=True, timeout=60.0) for node in range(nodes)]
    paths = [f"@rdzv-bench-{os.getpid()}-{node}" for node in range(nodes)]
    for proxy, path in zip(found, paths, strict=True):
        proxy.listen_unix(path)
    serve(connection, [(proxy.listen(), path) for proxy, path in zip(found, paths, strict=True)])
