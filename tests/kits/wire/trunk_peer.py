"""The trunk's framing spoken by hand, as a proxy that misbehaves, and as a root that does. See native/PROTOCOL.md."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from kits.wire.wire_client import Raw

HELLO = b"RDZV" + struct.pack("<I", 1)
(ATTACH, FORWARD, FOLLOW, UNFOLLOW, ARRIVE, GIVE_BACK, RECALLED, RECEIVED, REPORT) = range(10, 19)
OK, ERROR = 0, 1
VALUE, PRESENT, WOKEN, RECALL, TAKEN = 5, 6, 7, 8, 9
LEAF, AGAIN = 1, 2


def frame(number: int, operation: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IIB", 5 + len(payload), number, operation) + payload


def text(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def attach(token: int, *, received: int = 0, grace_ms: int = 2000, flags: int = LEAF) -> bytes:
    return frame(1, ATTACH, struct.pack("<QQIB", token, received, grace_ms, flags) + text(b"by hand"))


def framed(port: int) -> Raw:
    client = Raw(port, validated=False)
    client.send(b"\xf7" + HELLO)
    assert client.receive(len(HELLO)) == HELLO
    return client


def answer(client: Raw) -> tuple[int, int, bytes]:
    """Request number, status, payload."""
    size, number, status = struct.unpack("<IIB", client.receive(9))
    return number, status, client.receive(size - 5)


def attached(port: int, token: int, *, grace_ms: int = 2000) -> Raw:
    client = framed(port)
    client.send(attach(token, grace_ms=grace_ms))
    number, status, _ = answer(client)
    assert (number, status) == (1, OK)
    return client


def takes_trunk(after: bytes) -> Callable[[socket.socket], object]:
    """A root that greets, attaches, and then says that. A proxy may hang up before, and try again."""

    def take(connection: socket.socket, size: int) -> bytes:
        data = connection.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise ConnectionError("the proxy has hung up")
        return data

    def run(connection: socket.socket) -> None:
        assert take(connection, 1 + len(HELLO)) == b"\xf7" + HELLO
        connection.sendall(HELLO)
        size, number, operation = struct.unpack("<IIB", take(connection, 9))
        assert operation == ATTACH
        take(connection, size - 5)
        connection.sendall(frame(number, OK, struct.pack("<QQ", 0, 0)) + after)

    return run
