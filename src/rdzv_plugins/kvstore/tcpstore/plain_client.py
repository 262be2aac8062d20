"""A client of a TCPStore for agents, as a ``torch.distributed.Store``.

torch's own client looks up the name of every server that it connects to, which can take ten seconds where no name
server answers, and a signal cannot interrupt it while it waits. This one does neither. Workers have torch's.

The format is in native/PROTOCOL.md; tests/wire runs it against torch's servers and the native one.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError, Store

from rdzv_plugins.kvstore.sockets.interruption import Interruption
from rdzv_plugins.kvstore.tcpstore.wire import receive

_SET, _COMPARE_SET, _GET, _ADD, _CHECK, _WAIT = 1, 2, 3, 4, 5, 6
_NUM_KEYS, _DELETE, _MULTI_GET, _MULTI_SET, _CANCEL_WAIT = 7, 8, 10, 11, 12
_READY = 0
_ANSWER_S = 60.0
"""An answer that need not wait for anybody takes at most this long."""

Text = str | bytes


class PlainClient(Store):  # type: ignore[misc]
    """All keys begin with ``prefix``. Thread-safe: one request at a time, waits included.

    Takes over ``connection``, which has been greeted. ``timeout`` (seconds) is that of waits. Raises
    ``DistStoreError`` when it has passed, and ``DistNetworkError`` once the connection is broken, for ever: also
    when ``interruption`` comes, which ends a request at once, and whose reason the error names.
    """

    def __init__(self, connection: socket.socket, *, prefix: str, timeout: float, interruption: Interruption) -> None:
        super().__init__()
        host, port = connection.getpeername()[:2]
        self._where = f"{host} port {port}"
        self._connection = connection
        self._prefix = f"/{prefix}/".encode()
        self._timeout = timedelta(seconds=timeout)
        self._lock = threading.Lock()
        self._broken = ""
        self._interruption = interruption
        interruption.attach(connection)

    @property
    def timeout(self) -> timedelta:
        """How long waits may take."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def set(self, key: str, value: Text) -> None:
        self._ask(struct.pack("=B", _SET) + self._key(key) + _text(value))

    def get(self, key: str) -> bytes:
        """Get the value of a key, and wait until it is there."""
        return self.multi_get([key])[0]

    def compare_set(self, key: str, expected: Text, desired: Text) -> bytes:
        request = struct.pack("=B", _COMPARE_SET) + self._key(key) + _text(expected) + _text(desired)
        return bytes(self._ask(request, _read_text))

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(struct.pack("=B", _ADD) + self._key(key) + struct.pack("=q", amount), _read_number))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask(struct.pack("=B", _CHECK) + self._keys(keys), lambda c: receive(c, 1)[0] == _READY))

    def delete_key(self, key: str) -> bool:
        return bool(self._ask(struct.pack("=B", _DELETE) + self._key(key), _read_number))

    def num_keys(self) -> int:
        """The number of keys in the whole store."""
        return int(self._ask(struct.pack("=B", _NUM_KEYS), _read_number))

    def multi_set(self, keys: Sequence[str], values: Sequence[Text]) -> None:
        pairs = b"".join(self._key(key) + _text(value) for key, value in zip(keys, values, strict=True))
        self._ask(struct.pack("=BQ", _MULTI_SET, len(keys)) + pairs)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Get the values of the keys, and wait until all are there."""
        self.wait(keys)
        request = struct.pack("=B", _MULTI_GET) + self._keys(keys)
        return list(self._ask(request, lambda c: [_read_text(c) for _ in keys]))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        limit = (self._timeout if timeout is None else timeout).total_seconds()

        def released(connection: socket.socket) -> bool:
            if _wait_byte(connection, limit):
                return True
            connection.settimeout(_ANSWER_S)
            connection.sendall(struct.pack("=B", _CANCEL_WAIT))
            if receive(connection, 1)[0] == _READY:  # it was released just before
                receive(connection, 1)
            return False

        if not self._ask(struct.pack("=B", _WAIT) + self._keys(keys), released):
            raise DistStoreError(f"wait timeout after {limit:g} s for {', '.join(keys)} in the store at {self._where}")

    def close(self) -> None:
        """Use it no longer. May be called more than once; not while another thread waits."""
        self._break("it was closed")

    def _ask(self, request: bytes, read: Any = None) -> Any:
        with self._lock:
            if reason := self._broken or self._interruption.reason:
                raise DistNetworkError(f"the connection to the store at {self._where} is broken: {reason}")
            try:
                self._connection.settimeout(_ANSWER_S)
                self._connection.sendall(request)
                return None if read is None else read(self._connection)
            except BaseException as error:  # a signal too: half an answer may be left
                self._break(self._interruption.reason or str(error) or type(error).__name__)
                if isinstance(error, OSError):
                    raise DistNetworkError(f"lost the store at {self._where}: {self._broken}") from error
                raise

    def _break(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._interruption.detach(self._connection)
        self._connection.close()

    def _key(self, key: str) -> bytes:
        return _text(self._prefix + key.encode())

    def _keys(self, keys: Sequence[str]) -> bytes:
        return struct.pack("=Q", len(keys)) + b"".join(map(self._key, keys))


def _text(value: Text) -> bytes:
    data = value.encode() if isinstance(value, str) else bytes(value)
    return struct.pack("=Q", len(data)) + data


def _read_text(connection: socket.socket) -> bytes:
    return receive(connection, struct.unpack("=Q", receive(connection, 8))[0])


def _read_number(connection: socket.socket) -> int:
    return int(struct.unpack("=q", receive(connection, 8))[0])


def _wait_byte(connection: socket.socket, limit: float) -> bool:
    """The answer to a WAIT; False if there is none after ``limit`` seconds."""
    deadline = time.monotonic() + limit
    try:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        receive(connection, 1)
    except TimeoutError:
        return False
    return True
