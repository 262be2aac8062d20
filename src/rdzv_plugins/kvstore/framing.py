"""Our own framing of the native store, as a client: statistics. The format is in native/PROTOCOL.md."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable, RdzvError
from rdzv_plugins.kvstore.reach import dial
from rdzv_plugins.kvstore.wire import receive

_HELLO = b"\xf7RDZV" + struct.pack("<I", 1)
_STATISTICS = 1
_OK = 0


def ask_statistics(endpoint: Endpoint, timeout: float) -> dict[str, Any]:
    """What ``StoreServer.stats()`` says at ``endpoint``. ``timeout`` (seconds) holds for each step.

    Raises ``EndpointUnreachable``, also when something else than a native store answers.
    """
    try:
        connection = dial(endpoint.host, endpoint.port, timeout)
    except socket.gaierror as error:
        raise EndpointUnreachable(
            f"{endpoint} does not resolve: {error.strerror}", remedy="Check the name, or give an IP address."
        ) from None
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
        raise EndpointUnreachable(
            f"{endpoint} cannot be reached: {why}", remedy="Check address and port, and that the job still runs."
        ) from None
    with connection:
        try:
            connection.sendall(_HELLO)
            _expect_hello(connection)
            return _request(connection, _STATISTICS)
        except ValueError as error:  # not JSON
            raise EndpointUnreachable(
                f"the store at {endpoint} answers with something else than statistics: {error}",
                remedy="Is it of another version of rdzv-plugins? Ask it with the rdzv of that version.",
            ) from None
        except (OSError, struct.error) as error:
            what = "does not answer" if isinstance(error, TimeoutError) else "hangs up"
            raise EndpointUnreachable(
                f"something listens at {endpoint}, but {what} when it is asked as a native store",
                remedy="torch's own TCPStore has no statistics: start the job with --rdzv-conf store=parallel, or the "
                "store with rdzv serve.",
            ) from None


def _expect_hello(connection: socket.socket) -> None:
    magic, version = struct.unpack("<4sI", receive(connection, 8))
    if magic != b"RDZV" or version != 1:
        raise ConnectionError("not our framing")


def _request(connection: socket.socket, operation: int) -> dict[str, Any]:
    connection.sendall(struct.pack("<IIB", 5, 1, operation))
    (size,) = struct.unpack("<I", receive(connection, 4))
    _, status = struct.unpack("<IB", receive(connection, 5))
    payload = receive(connection, size - 5)
    if status != _OK:
        raise RdzvError(f"the store refuses: {payload.decode(errors='backslashreplace')}")
    answer: dict[str, Any] = json.loads(payload)
    return answer
