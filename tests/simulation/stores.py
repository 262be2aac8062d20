"""The store server in simulated time: torch's wire format, as the native server answers it.

A store lives in the process that serves it: it ends with it, and stands still with it, while its kernel takes what
comes. Clients are the real ones, on simulated sockets, so waits, time-outs and errors are theirs. Tokens, TLS, limits
and the requests that none of our clients makes (APPEND, queues, LIST_KEYS, BARRIER) are left out.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

from rdzv_plugins.kvstore.tcpstore import wire
from simulation.kernel import Kernel, Socket
from simulation.network import End

_GREETING = bytes((wire.VALIDATE,)) + struct.pack("=I", 0x3C85F7CE)
_MOST = 1 << 63


class _Incomplete(Exception):
    """The rest of the request is still to come."""


class _Request:
    """Reads the parts of one request."""

    def __init__(self, data: bytearray) -> None:
        self._data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self._data):
            raise _Incomplete
        self.at += size
        return bytes(self._data[self.at - size : self.at])

    def number(self) -> int:
        return int(struct.unpack("=q", self.take(8))[0])

    def text(self) -> bytes:
        return self.take(self.number())

    def texts(self) -> list[bytes]:
        return [self.text() for _ in range(self.number())]


class _Refused(Exception):
    """A request that the server objects to: it hangs up."""


class _Connection:
    """One client's."""

    def __init__(self, store: Keyspace, end: End) -> None:
        self._store, self._end = store, end
        self._data, self._answers = bytearray(), bytearray()
        self._expected = _GREETING
        self._is_served = False
        self.waits: list[dict[bytes, None]] = []
        """For each wait, the keys that are still to come."""
        end.on_message, end.on_end = self._came, lambda how: store.forget(self)

    def close(self) -> None:
        self._end.end("closed")

    def release(self, keys: dict[bytes, bytes]) -> None:
        """These keys have come."""
        for missing in self.waits:
            for key in keys:
                missing.pop(key, None)
        if released := self.waits.count({}):
            self.waits = [each for each in self.waits if each]
            self._answers += b"\0" * released
            if not self._is_served:
                self._flush()

    def _came(self, data: Any) -> None:
        self._data += data
        self._is_served = True
        try:
            while self._data:
                self._serve(_Request(self._data))
        except _Incomplete:
            self._flush()
        except _Refused:
            self._store.forget(self)
            self.close()
        else:
            self._flush()
        self._is_served = False

    def _serve(self, request: _Request) -> None:
        if self._expected:
            if not self._expected.startswith(self._data[: len(self._expected)]):
                raise _Refused
            request.take(len(self._expected))
            self._expected = b""
        else:
            number = request.take(1)[0]
            if number not in _READ:
                raise _Refused
            parts = _READ[number](request)
            before = len(self._answers)
            self._answers[before:before] = self._store.request(self, number, *parts)  # before what it has released
        del self._data[: request.at]

    def _flush(self) -> None:
        if self._answers and not self._end.ended:
            self._end.send(bytes(self._answers))
        self._answers.clear()


class Keyspace:
    """One store, on a port of its own."""

    def __init__(self, kernel: Kernel, listener: Socket, asked: Counter[int]) -> None:
        self.keys: dict[bytes, bytes] = {}
        self.told_at: dict[bytes, float] = {}
        """When each key was first written."""
        self.host, self.port = kernel.process.host, listener.getsockname()[1]
        self._network, self._process, self._asked = kernel.network, kernel.process, asked
        self._connections: list[_Connection] = []
        self.is_open = True
        listener.hand_over(lambda end: self._connections.append(_Connection(self, end)))

    def close(self) -> None:
        """As the native one's."""
        if self.is_open:
            self.is_open = False
            self._network.stop_listening(self._process, self.port)
            for each in self._connections:
                each.close()
            self._connections.clear()

    def forget(self, connection: _Connection) -> None:
        """Its client has gone."""
        if connection in self._connections:
            self._connections.remove(connection)

    def request(self, by: _Connection, number: int, *parts: Any) -> bytes:
        """Do what is asked; returns the answer."""
        self._asked[number] += 1
        keys = self.keys
        match number, *parts:
            case wire.SET, key, value:
                self._write({key: value})
            case wire.MULTI_SET, pairs:
                self._write(pairs)
            case wire.COMPARE_SET, key, expected, desired:
                if keys.get(key, b"") == expected:
                    self._write({key: desired})
                return _text(keys.get(key, expected))
            case wire.GET, key:
                return _text(keys.get(key, b""))
            case wire.MULTI_GET, wanted:
                return b"".join(_text(keys.get(key, b"")) for key in wanted)
            case wire.ADD, key, amount:
                total = (_number(keys.get(key, b"0")) + amount + _MOST) % (2 * _MOST) - _MOST
                self._write({key: str(total).encode()})
                return struct.pack("=q", total)
            case wire.CHECK, wanted:
                return b"\0" if all(key in keys for key in wanted) else b"\1"
            case wire.WAIT, wanted:
                missing = {key: None for key in wanted if key not in keys}
                if not missing:
                    return b"\0"
                by.waits.append(missing)
            case (wire.CANCEL_WAIT,):
                by.waits.clear()
                return b"\1"
            case (wire.NUM_KEYS,):
                return struct.pack("=q", len(keys))
            case wire.DELETE_KEY, key:
                return struct.pack("=q", int(keys.pop(key, None) is not None))
            case wire.PING, nonce:
                return bytes(nonce)
        return b""

    def _write(self, pairs: dict[bytes, bytes]) -> None:
        self.keys |= pairs
        for key in pairs:
            self.told_at.setdefault(key, self._network.scheduler.now)
        for connection in self._connections:
            if connection.waits:
                connection.release(pairs)


class StoreServer:
    """Has the methods of the native server that a handler calls. Made by ``StoreServers``."""

    def __init__(self, servers: StoreServers, listen_fd: int, name: str) -> None:
        self._servers = servers
        self._keyspaces: list[Keyspace] = []
        self.first = self.open_keyspace(name, listen_fd=listen_fd)

    @property
    def port(self) -> int:
        return self.first.port

    def open_keyspace(self, name: str, *, listen_fd: int) -> Keyspace:
        listener = self._servers.kernel.open[listen_fd]
        assert isinstance(listener, Socket)
        made = Keyspace(self._servers.kernel, listener, self._servers.asked)
        self._keyspaces.append(made)
        self._servers.opened.append((name, made))
        return made

    def close(self) -> None:
        for each in self._keyspaces:
            each.close()


class StoreServers:
    """Those of all processes. Called as ``native_server`` is, by a thread of the process that serves."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.asked = Counter[int]()
        """How often each request was made of any of them, by its number on the wire."""
        self.opened: list[tuple[str, Keyspace]] = []
        """All stores that there ever were, by name."""

    def __call__(self, *, listen_fd: int, name: str = "default", **_: object) -> StoreServer:
        return StoreServer(self, listen_fd, name)


def _number(text: bytes) -> int:
    """As C's ``stoll`` reads it."""
    found = re.match(rb"[ \t\n\v\f\r]*[+-]?\d+", text)
    if found is None or not -_MOST <= int(found[0]) < _MOST:
        raise _Refused
    return int(found[0])


def _text(value: bytes) -> bytes:
    return struct.pack("=Q", len(value)) + value


_READ: dict[int, Callable[[_Request], tuple[Any, ...]]] = {
    wire.SET: lambda r: (r.text(), r.text()),
    wire.MULTI_SET: lambda r: ({r.text(): r.text() for _ in range(r.number())},),
    wire.COMPARE_SET: lambda r: (r.text(), r.text(), r.text()),
    wire.GET: lambda r: (r.text(),),
    wire.MULTI_GET: lambda r: (r.texts(),),
    wire.ADD: lambda r: (r.text(), r.number()),
    wire.CHECK: lambda r: (r.texts(),),
    wire.WAIT: lambda r: (r.texts(),),
    wire.CANCEL_WAIT: lambda r: (),
    wire.NUM_KEYS: lambda r: (),
    wire.DELETE_KEY: lambda r: (r.text(),),
    wire.PING: lambda r: (r.take(4),),
}
"""The parts of each request, in the order of the wire."""
