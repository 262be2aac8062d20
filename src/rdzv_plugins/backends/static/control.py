"""The agents' control store of a static job: node rank 0 serves it, every node is a client. Works without torch."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.sockets.reach import Greeting, Interruption, dial, reach
from rdzv_plugins.kvstore.tcpstore import wire
from rdzv_plugins.kvstore.tcpstore.listener import greet_store
from rdzv_plugins.kvstore.tcpstore.plain_client import PlainClient
from rdzv_plugins.kvstore.tcpstore.wire import keep_alive
from rdzv_plugins.rounds.worker_stores import Serve
from rdzv_plugins.runtime import Runtime

if TYPE_CHECKING:
    import socket

_CONNECT_S = 30.0


class ControlStore:
    """A client, and on node rank 0 the server, too. Thread-safe.

    A signal leaves the client usable, as an agent that is stopped uses it to say so. Answers have no time limit: a
    server that stands still goes on later; that one is gone is noticed by TCP, or reported by ``interrupt``.
    """

    def __init__(self, connection: socket.socket, read_timeout: float, runtime: Runtime, server: Any = None) -> None:
        """Takes over ``connection``, which was greeted, and ``server``. ``read_timeout`` (seconds) applies to waits."""
        self._server = server
        self._waits = Interruption(runtime)
        self.host, self.port = connection.getpeername()[:2]
        keep_alive(connection)
        self.client = PlainClient(
            connection,
            prefix="",
            timeout=read_timeout,
            interruption=self._waits,
            answer=None,
            again=functools.partial(_greeted, self.host, self.port, runtime),
            runtime=runtime,
        )

    def interrupt(self, reason: str) -> None:
        """End all requests, now and later, with ``StoreLost`` and ``reason``. Never blocks."""
        self._waits.interrupt(reason)

    def close(self) -> None:
        """Make no more requests, and stop serving. May be called more than once."""
        self.interrupt("this agent ends")
        self.client.close()
        server, self._server = self._server, None
        if hasattr(server, "close"):  # torch's ends when nothing refers to it any more
            server.close()


def serve(listener: socket.socket, runtime: Runtime, *, native: Serve | None, read_timeout: float) -> ControlStore:
    """Serve it, with the native store or, if that is None, torch's, on a listening socket, which is taken over."""
    address, port = listener.getsockname()[:2]
    own = {"::": "127.0.0.1", "0.0.0.0": "127.0.0.1"}.get(address, address)
    server: Any
    if native is not None:
        from rdzv_plugins.kvstore.native.framing import CONTROL, NO_RUN

        server = native(threads=1, listen_fd=listener.detach(), name=CONTROL, run=NO_RUN, runtime=runtime)
    else:
        from rdzv_plugins.kvstore.tcpstore.torch_store import serve_at

        server = serve_at(listener, timeout=read_timeout)
    return ControlStore(_greeted(own, port, runtime), read_timeout, runtime, server)


def connect(
    endpoint: Endpoint,
    runtime: Runtime,
    *,
    join_timeout: float,
    read_timeout: float,
    who: str,
    greet: Greeting = greet_store,
) -> ControlStore:
    """Reach it at ``endpoint``, trying for ``join_timeout`` seconds. Raises ``EndpointUnreachable``."""
    return ControlStore(reach(endpoint, join_timeout, who, greet, runtime=runtime), read_timeout, runtime)


def _greeted(host: str, port: int, runtime: Runtime) -> socket.socket:
    """Make another greeted connection. Raises ``OSError``."""
    with contextlib.ExitStack() as unless_kept:
        connection = unless_kept.enter_context(dial(host, port, _CONNECT_S, runtime=runtime))
        wire.greet(connection)
        keep_alive(connection)
        unless_kept.pop_all()
        return connection
