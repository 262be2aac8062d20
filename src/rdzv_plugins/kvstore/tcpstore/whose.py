"""Something other than what a node was told listens at an endpoint: if a backend knows what it is, say so at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AddressInUse, EndpointUnreachable
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.sockets.reach import dial
from rdzv_plugins.kvstore.tcpstore import wire
from rdzv_plugins.runtime import MSG_PEEK, SYSTEM, Runtime

if TYPE_CHECKING:
    import socket

_AT_ONCE_S = 1.0
"""Seconds after which a client without an answer asks whom it has reached: most servers wait for more to read."""
_WOKEN_S = 0.5
"""Seconds within which a server answers that stood still and has just told somebody else what it is."""
_BEGINS_S, _LOOK_AGAIN_S = 0.3, 0.02
"""Seconds that a node may take from listening to saying whose its store is, and how often to look meanwhile."""
_PROBE_S = 2.0
SAME_BACKEND = "Start all nodes of a job with the same --rdzv-backend, and give each job an endpoint of its own."

Stranger = Callable[[], EndpointUnreachable | None]
"""Returns the error that says what listens there, if that is unexpected and known. Takes some seconds at most."""


def unknown() -> None:
    """A ``Stranger`` for when no backend can be asked."""


def stranger_at(request: Request, endpoint: Endpoint) -> EndpointUnreachable | None:
    """A ``Stranger`` that asks the installed backends."""
    what = request.whose(str(endpoint))
    return EndpointUnreachable(_told(request, endpoint, what), remedy=SAME_BACKEND) if what else None


@contextlib.contextmanager
def telling_whose(request: Request, endpoint: Endpoint) -> Iterator[None]:
    """Wrap the binding of ``endpoint``: an ``AddressInUse`` then says what is served there, if a backend knows."""
    try:
        yield
    except AddressInUse as error:
        what = request.whose(str(endpoint))
        if not what:
            raise
        raise AddressInUse(f"{error}; {_told(request, endpoint, what)}", remedy=SAME_BACKEND) from None


def refuse_others(
    store: Any, keys: Sequence[str], request: Request, endpoint: Endpoint, runtime: Runtime = SYSTEM
) -> None:
    """Raise what is known about the owner of ``store``, a client of ``endpoint``, if it has none of ``keys``."""

    def has_any() -> bool:
        return any(store.check([key]) for key in keys)

    deadline = runtime.monotonic() + _BEGINS_S
    while not has_any():  # asking around costs more than all the rest of joining
        if runtime.monotonic() >= deadline:
            known = stranger_at(request, endpoint)
            if known is not None and not has_any():  # its node had only just begun to serve
                raise known
            return
        runtime.sleep(_LOOK_AGAIN_S)


def _told(request: Request, endpoint: Endpoint, what: str) -> str:
    return f"at {endpoint} is {what}; this node was given --rdzv-backend={request.backend}"


def look_if_silent(connection: socket.socket, stranger: Stranger) -> None:
    """Raise what ``stranger`` knows if a greeting is not answered at once. Consumes nothing of the answer."""
    if not _answers(connection, _AT_ONCE_S):
        error = stranger()
        if error is not None and not _answers(connection, _WOKEN_S):
            raise error


def _answers(connection: socket.socket, patience: float) -> bool:
    """Whether the other side answers in time or has hung up."""
    limit = connection.gettimeout()
    connection.settimeout(patience if limit is None else min(limit, patience))
    try:
        connection.recv(1, MSG_PEEK)
    except TimeoutError:
        return False
    finally:
        connection.settimeout(limit)
    return True


def is_torch_store(connection: socket.socket, runtime: Runtime = SYSTEM) -> bool:
    """Whether the other side greets torch's clients, and yet leaves ``connection`` without an answer.

    torch's server takes the greeting of a native store's client for the beginning of something longer, and waits. A
    native store that was only slow for a while also answers torch's greeting, but then the other one as well.
    """
    patience = min(_PROBE_S, connection.gettimeout() or _PROBE_S)
    try:
        host, port = connection.getpeername()[:2]
        with dial(host, port, patience, runtime=runtime) as probe:
            wire.greet(probe)
    except OSError:
        return False
    connection.settimeout(patience)
    try:
        return connection.recv(1, MSG_PEEK) == b""
    except TimeoutError:
        return True
    except OSError:
        return False
