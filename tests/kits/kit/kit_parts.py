"""Backends and servers for the tests of the kit."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from rdzv_http.client import HttpClient

from rdzv_plugins.coordination import Session
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.kit import Coordination, Security, coordination_backend
from rdzv_plugins.testing.parts import PATIENCE, Losses, opened

T = PATIENCE


@contextmanager
def backend_at(
    port: int,
    *,
    outage: float = T,
    security: Security | None = None,
    host: str = "127.0.0.1",
    client: type = HttpClient,
) -> Iterator[Coordination]:
    endpoint = Endpoint(host, port)
    backend = coordination_backend(
        "http", lambda: client(endpoint, "run", security or Security()), outage_timeout=outage
    )
    try:
        yield backend
    finally:
        backend.close()


@contextmanager
def session_at(port: int, ttl: float = T, **how: Any) -> Iterator[tuple[Session, Losses]]:
    """One, and what it is told of its loss. ``how``: as for ``backend_at``."""
    losses = Losses()
    with backend_at(port, **how) as backend:
        yield opened(backend, ttl, losses), losses


def refused(port: int, timeout: float = T, **how: Any) -> RdzvError:
    """What opening a session there raises; it says where, and what to do."""
    with backend_at(port, **how) as backend, pytest.raises(RdzvError) as raised:
        backend.open_session(T, on_lost=lambda _: None, timeout=timeout)
    assert raised.value.remedy
    assert f"{how.get('host', '127.0.0.1')}:{port}" in str(raised.value)
    return raised.value


@contextmanager
def listening(serve: Callable[[socket.socket], None], port: int = 0) -> Iterator[int]:
    """The port at which each connection is given to ``serve``, and closed after it."""
    listener = socket.create_server(("127.0.0.1", port))

    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            serve(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
