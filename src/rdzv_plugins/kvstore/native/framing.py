"""Our own framing of the native store, on the client side: greeting, frames, statistics. See native/PROTOCOL.md."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rdzv_plugins.certificates import NodeCertificates
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable, RdzvError
from rdzv_plugins.job_token import JobToken
from rdzv_plugins.kvstore.native.proving import NotProving, Purpose, prove, refuse_if_told
from rdzv_plugins.kvstore.native.statistics import parse_statistics
from rdzv_plugins.kvstore.sockets.reach import dial, reason_of
from rdzv_plugins.kvstore.tcpstore.whose import Stranger, is_torch_store, look_if_silent, unknown
from rdzv_plugins.kvstore.tcpstore.wire import receive
from rdzv_plugins.runtime import SYSTEM, Runtime, gaierror

if TYPE_CHECKING:
    import socket

VERSION = 1
DONE, REFUSED = 0, 1
"""Statuses of a reply; when refused, the payload is text for people."""

LENGTH = struct.Struct("<I")
HEAD = struct.Struct("<IB")
"""What follows the length: the number of the request, and its operation or the status of the reply."""

_MAGIC = b"RDZV"
_STATISTICS = 1


class NotNative(ConnectionError):
    """What answers does not speak our framing; ``args[0]`` is what it said."""


class OtherVersion(ConnectionError):
    """What answers speaks another version of our framing, ``args[0]``."""


def hello(
    connection: socket.socket,
    ahead: bytes = b"",
    on_sent: Callable[[], None] = lambda: None,
    *,
    token: JobToken | None = None,
    purpose: Purpose = Purpose.SESSION,
    run_id: str = "",
    runtime: Runtime = SYSTEM,
) -> None:
    """Greet, and send ``ahead`` along: frames that need not wait for the answer.

    ``on_sent`` is called before the answer is waited for. With a ``token``, both sides first prove that they know it,
    for this ``purpose`` and of this run. Raises ``NotNative``, ``OtherVersion``, ``AccessRefused``, ``ConnectionError``
    or ``TimeoutError`` (of the socket).
    """
    greeting = b"\xf7" + _MAGIC + LENGTH.pack(VERSION) + ahead
    if token is None:
        connection.sendall(greeting)
        on_sent()
    else:
        try:
            prove(connection, token, purpose, run_id, on_sent=on_sent, ahead=greeting, runtime=runtime)
        except NotProving as error:
            raise NotNative(error.args[0]) from None
    answer = receive(connection, len(_MAGIC) + LENGTH.size)
    refuse_if_told(connection, answer)
    if not answer.startswith(_MAGIC):
        raise NotNative(answer)
    (version,) = LENGTH.unpack_from(answer, len(_MAGIC))
    if version != VERSION:
        raise OtherVersion(version)


def frame(number: int, operation: int, payload: bytes = b"") -> bytes:
    """One complete request. ``number`` comes back with its reply."""
    return LENGTH.pack(HEAD.size + len(payload)) + HEAD.pack(number, operation) + payload


def receive_reply(connection: socket.socket) -> tuple[int, bytes]:
    """Status and payload of the next reply. Raises ``ConnectionError`` or ``TimeoutError`` (of the socket)."""
    (size,) = LENGTH.unpack(receive(connection, LENGTH.size))
    if size < HEAD.size:
        raise ConnectionError(f"a frame of {size} bytes")
    _, status = HEAD.unpack(receive(connection, HEAD.size))
    return status, receive(connection, size - HEAD.size)


def ask_statistics(
    endpoint: Endpoint,
    timeout: float,
    *,
    stranger: Stranger = unknown,
    token: JobToken | None = None,
    tls: NodeCertificates | None = None,
    runtime: Runtime = SYSTEM,
) -> dict[str, Any]:
    """Ask for what ``StoreServer.stats()`` returns at ``endpoint``. ``timeout`` (seconds) applies to each step.

    ``stranger`` is asked when the listener does not answer as a native store; ``token`` and ``tls`` are the job's.
    Raises ``EndpointUnreachable``, of which ``AccessRefused`` is one kind, also when something other than a native
    store answers.
    """
    try:
        connection = dial(endpoint.host, endpoint.port, timeout, tls=tls, runtime=runtime)
    except gaierror as error:
        raise EndpointUnreachable(
            f"{endpoint} does not resolve: {error.strerror}", remedy="Check the name, or give an IP address."
        ) from None
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else reason_of(error)
        raise EndpointUnreachable(
            f"{endpoint} cannot be reached: {why}", remedy="Check address and port, and that the job still runs."
        ) from None
    with connection:
        try:
            silent = functools.partial(_silent, endpoint, connection, stranger, runtime)
            hello(
                connection,
                # under TLS it has spoken TLS, as nobody does who could be named
                on_sent=lambda: look_if_silent(connection, silent if tls is None else unknown),
                token=token,
                purpose=Purpose.STATUS,
                runtime=runtime,
            )
            return request_statistics(connection)
        except ValueError as error:  # not JSON
            raise not_statistics(endpoint, str(error)) from None
        except OSError as error:
            what = "does not answer" if isinstance(error, TimeoutError) else "hangs up"
            raise EndpointUnreachable(
                f"something listens at {endpoint}, but {what} when it is asked as a native store",
                remedy="torch's own TCPStore has no statistics: start the job with --rdzv-conf store=parallel, or the "
                "store with rdzv serve.",
            ) from None


def _silent(
    endpoint: Endpoint, connection: socket.socket, stranger: Stranger, runtime: Runtime
) -> EndpointUnreachable | None:
    if known := stranger():
        return known
    if not is_torch_store(connection, runtime):
        return None
    return EndpointUnreachable(
        f"{endpoint} is a TCPStore of torch, which has no statistics",
        remedy="Of a rendezvous there more is known by --rdzv-backend and --rdzv-id. A workers' store has statistics "
        "with --rdzv-conf store=parallel.",
    )


def not_statistics(endpoint: Endpoint, why: str) -> EndpointUnreachable:
    """The error to raise when an answer lacks something it must have."""
    return EndpointUnreachable(
        f"the store at {endpoint} answers with something else than statistics: {why}",
        remedy="Is it of another version of rdzv-plugins? Ask it with the rdzv of that version.",
    )


def request_statistics(connection: socket.socket) -> dict[str, Any]:
    """Ask on a greeted connection. Raises ``OSError``, ``RdzvError`` if it is refused, or ``ValueError``."""
    connection.sendall(frame(1, _STATISTICS))
    status, payload = receive_reply(connection)
    if status != DONE:
        raise RdzvError(f"the store refuses: {payload.decode(errors='backslashreplace')}")
    return parse_statistics(payload)
