"""The little of torch's TCPStore wire format that we speak ourselves: a greeting, and waiting for one key.

Verified against torch 2.13; ``QueryType`` in torch/csrc/distributed/c10d/TCPStoreBackend.hpp names the
requests. Integers are in host byte order, a string is its length (u64) and its bytes, and a key is
sent with a leading slash. There are no error replies: a server that objects hangs up.
"""

from __future__ import annotations

import os
import socket
import struct

_VALIDATE, _GET, _WAIT, _PING = 0, 3, 6, 13
_MAGIC = 0x3C85F7CE


class NotAStore(ConnectionError):
    """What answers is not a TCPStore; ``args[0]`` is what it said."""


def greet(connection: socket.socket) -> None:
    """The first two requests of every client: VALIDATE, then PING, which the server echoes.

    Raises ``NotAStore``, ``TimeoutError`` (of the socket) or ``ConnectionError``.
    """
    nonce = struct.pack("=I", os.getpid())
    connection.sendall(struct.pack("=BI", _VALIDATE, _MAGIC) + struct.pack("=B", _PING) + nonce)
    answer = receive(connection, 4)
    if answer != nonce:
        raise NotAStore(answer)


def wait_and_get(connection: socket.socket, key: str) -> bytes:
    """Block until ``key`` is set, and return its value. The server answers; nothing is polled."""
    text = f"/{key}".encode()
    name = struct.pack("=Q", len(text)) + text
    connection.sendall(struct.pack("=BQ", _WAIT, 1) + name)
    receive(connection, 1)
    connection.sendall(struct.pack("=B", _GET) + name)
    (length,) = struct.unpack("=Q", receive(connection, 8))
    return receive(connection, length)


def receive(connection: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes. Raises ``ConnectionError`` when the other side hangs up before."""
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the other side closed the connection")
        data += part
    return data
