"""The small part of torch's TCPStore wire format that we speak ourselves: a greeting, reading a key, waiting for one.

Here are the numbers of all requests that our clients make. Verified against torch 2.13; ``QueryType`` in
torch/csrc/distributed/c10d/TCPStoreBackend.hpp names the requests. Integers are in host byte order, a string is its
length (u64) and its bytes, and a key is sent with a leading slash. There are no error replies: a server that objects
hangs up.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from rdzv_plugins.runtime import (
    IPPROTO_TCP,
    SO_KEEPALIVE,
    SOL_SOCKET,
    TCP_KEEPCNT,
    TCP_KEEPIDLE,
    TCP_KEEPINTVL,
    TCP_USER_TIMEOUT,
)

if TYPE_CHECKING:
    import socket

VALIDATE, SET, COMPARE_SET, GET, ADD, CHECK, WAIT = 0, 1, 2, 3, 4, 5, 6
NUM_KEYS, DELETE_KEY, MULTI_GET, MULTI_SET, CANCEL_WAIT, PING = 7, 8, 10, 11, 12, 13
_MAGIC = 0x3C85F7CE
READY = b"\0"
"""The answer to CHECK if all keys are there, and to WAIT once they are."""
_NONCE = b"rdzv"
"""Of torch's clients it is the process id; no other program answers with it alone."""
_MOST_BYTES = 1 << 24
"""The most bytes of one value: torch's state of a rendezvous has some hundred for each node."""


class NotAStore(ConnectionError):
    """What answers is not a TCPStore; ``args[0]`` is what it said."""


def greet(connection: socket.socket, on_sent: Callable[[], None] = lambda: None) -> None:
    """Make the first two requests of every client: VALIDATE, then PING, which the server echoes.

    ``on_sent`` is called before the answer is waited for. Raises ``NotAStore``, ``TimeoutError`` (of the socket) or
    ``ConnectionError``.
    """
    connection.sendall(struct.pack("=BI", VALIDATE, _MAGIC) + struct.pack("=B", PING) + _NONCE)
    on_sent()
    answer = receive(connection, len(_NONCE))
    if answer != _NONCE:
        raise NotAStore(answer)


def wait_and_get(connection: socket.socket, key: str) -> bytes:
    """Block until ``key`` is set, and return its value. The server answers; nothing is polled."""
    connection.sendall(struct.pack("=BQ", WAIT, 1) + text(f"/{key}"))
    receive(connection, 1)
    return get(connection, key)


def check(connection: socket.socket, key: str) -> bool:
    """Whether ``key`` is set."""
    connection.sendall(struct.pack("=BQ", CHECK, 1) + text(f"/{key}"))
    return receive(connection, 1) == READY


def get(connection: socket.socket, key: str) -> bytes:
    """The value of a key that is set. Raises ``ConnectionError`` for one longer than any of ours."""
    connection.sendall(struct.pack("=B", GET) + text(f"/{key}"))
    (length,) = struct.unpack("=Q", receive(connection, 8))
    if length > _MOST_BYTES:
        raise ConnectionError(f"the value of {key} has {length} bytes")
    return receive(connection, length)


def text(value: str | bytes) -> bytes:
    """A text as it is sent."""
    data = value.encode() if isinstance(value, str) else bytes(value)
    return struct.pack("=Q", len(data)) + data


def read_text(connection: socket.socket) -> bytes:
    """A text, of any length, that is sent to us."""
    return receive(connection, struct.unpack("=Q", receive(connection, 8))[0])


def receive(connection: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes. Raises ``ConnectionError`` if the other side hangs up first."""
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the other side closed the connection")
        data += part
    return data


def keep_alive(connection: socket.socket, every: int = 10, probes: int = 3) -> None:
    """Have a connection count as lost when its other end has not answered ``probes``: for about 40 s.

    One is sent after ``every`` seconds of silence. The kernel at that end answers, even if the process stands still.
    The kernel at this end does not ask while what it has sent is not confirmed: it sends that again, by itself for a
    quarter of an hour.
    """
    connection.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
    resends = (TCP_USER_TIMEOUT, 1000 * every * (probes + 1))
    for option, value in ((TCP_KEEPIDLE, every), (TCP_KEEPINTVL, every), (TCP_KEEPCNT, probes), resends):
        if option:  # on Linux; elsewhere the system's own times apply
            connection.setsockopt(IPPROTO_TCP, option, value)
