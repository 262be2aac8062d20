"""As much of a TCPStore's client as a training loop without torch needs; it waits for as long as it takes."""

from __future__ import annotations

import socket
import struct

from rdzv_plugins.kvstore.tcpstore import wire

_DIAL_S = 60.0


class StoreClient:
    """Raises ``OSError`` once the store has gone."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = socket.create_connection((host, port), _DIAL_S)
        wire.greet(self._connection)
        self._connection.settimeout(None)

    def set(self, key: str, value: str) -> None:
        self._connection.sendall(struct.pack("=B", wire.SET) + _text(f"/{key}") + _text(value))

    def compare_set(self, key: str, value: str) -> str:
        """Set what is not there yet; returns what is there then."""
        self._connection.sendall(struct.pack("=B", wire.COMPARE_SET) + _text(f"/{key}") + _text("") + _text(value))
        return self._read_text()

    def add(self, key: str, amount: int) -> int:
        self._connection.sendall(struct.pack("=B", wire.ADD) + _text(f"/{key}") + struct.pack("=q", amount))
        return self._read_number()

    def get(self, key: str) -> str:
        """Waits for it."""
        self._connection.sendall(struct.pack("=BQ", wire.WAIT, 1) + _text(f"/{key}"))
        wire.receive(self._connection, 1)
        self._connection.sendall(struct.pack("=B", wire.GET) + _text(f"/{key}"))
        return self._read_text()

    def delete(self, key: str) -> None:
        self._connection.sendall(struct.pack("=B", wire.DELETE_KEY) + _text(f"/{key}"))
        self._read_number()

    def _read_text(self) -> str:
        (length,) = struct.unpack("=Q", wire.receive(self._connection, 8))
        return wire.receive(self._connection, length).decode()

    def _read_number(self) -> int:
        return int(struct.unpack("=q", wire.receive(self._connection, 8))[0])


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("=Q", len(data)) + data
