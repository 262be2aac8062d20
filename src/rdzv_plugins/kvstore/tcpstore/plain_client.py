"""A client of a TCPStore for agents, without torch: it implements the contract's ``Store``.

torch's own client looks up the name of every server that it connects to, which can take ten seconds where no name
server answers, and a signal cannot interrupt it while it waits. This client has neither problem. Workers use torch's.

The format is in native/PROTOCOL.md; tests/wire runs it against torch's servers and the native one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rdzv_plugins.errors import StoreLost, StoreTimeout
from rdzv_plugins.kvstore.sockets.reach import CancelToken
from rdzv_plugins.kvstore.tcpstore import wire
from rdzv_plugins.kvstore.tcpstore.listener import greeted
from rdzv_plugins.runtime import AF_INET, AF_INET6, IPPROTO_TCP, SHUT_RDWR, SYSTEM, TCP_NODELAY, Runtime
from rdzv_plugins.store import Text

if TYPE_CHECKING:
    import socket

_ANSWER_S = 60.0
"""The most seconds for an answer that need not wait for anybody."""

Dial = Callable[[], "socket.socket"]


class PlainClient:
    """A ``Store``. Thread-safe: one request at a time, including waits.

    Takes over ``connection``, which has been greeted. All keys begin with ``prefix``, if there is one. ``timeout``
    (seconds) applies to waits, ``answer`` to answers for which the store waits for nobody; None means no limit. Raises
    ``StoreTimeout`` when the former has passed, and ``StoreLost`` from the moment the connection is broken. The latter
    also applies when ``interruption`` comes, which ends a request at once, and whose reason the error names.

    A signal whose handler raises leaves half an answer behind: the next request then gets a new connection from
    ``again``, which raises ``OSError`` if there is none; without ``again`` the connection counts as broken.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        prefix: str,
        timeout: float,
        interruption: CancelToken,
        answer: float | None = _ANSWER_S,
        again: Dial | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        host, port = connection.getpeername()[:2]
        self._where = f"{host} port {port}"
        self._connection: socket.socket = connection
        self._prefix = f"/{prefix}/".encode() if prefix else b"/"
        self._timeout = timedelta(seconds=timeout)
        self._answer, self._again = answer, again
        self._lock = runtime.Lock()
        self._broken = ""
        self._half = False  # the connection is closed: half an answer was left in it
        self._interruption = interruption
        self._attach()

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def set(self, key: str, value: Text) -> None:
        self._ask(struct.pack("=B", wire.SET) + self._key(key) + wire.text(value))

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def compare_set(self, key: str, expected: Text, desired: Text) -> bytes:
        request = struct.pack("=B", wire.COMPARE_SET) + self._key(key) + wire.text(expected) + wire.text(desired)
        return bytes(self._ask(request, wire.read_text))

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(struct.pack("=B", wire.ADD) + self._key(key) + struct.pack("=q", amount), _read_number))

    def check(self, keys: Sequence[str]) -> bool:
        request = struct.pack("=B", wire.CHECK) + self._keys(keys)
        return bool(self._ask(request, lambda c: wire.receive(c, 1) == wire.READY))

    def delete_key(self, key: str) -> bool:
        return bool(self._ask(struct.pack("=B", wire.DELETE_KEY) + self._key(key), _read_number))

    def num_keys(self) -> int:
        return int(self._ask(struct.pack("=B", wire.NUM_KEYS), _read_number))

    def multi_set(self, keys: Sequence[str], values: Sequence[Text]) -> None:
        pairs = b"".join(self._key(key) + wire.text(value) for key, value in zip(keys, values, strict=True))
        self._ask(struct.pack("=BQ", wire.MULTI_SET, len(keys)) + pairs)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        self.wait(keys)
        request = struct.pack("=B", wire.MULTI_GET) + self._keys(keys)
        return list(self._ask(request, lambda c: [wire.read_text(c) for _ in keys]))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        limit = (self._timeout if timeout is None else timeout).total_seconds()

        def released(connection: socket.socket) -> bool:
            try:
                connection.settimeout(max(0.001, limit))
                wire.receive(connection, 1)
                return True
            except TimeoutError:
                connection.settimeout(self._answer)
            connection.sendall(struct.pack("=B", wire.CANCEL_WAIT))
            if wire.receive(connection, 1) == wire.READY:  # it was released just before
                wire.receive(connection, 1)
            return False

        if not self._ask(struct.pack("=B", wire.WAIT) + self._keys(keys), released):
            raise StoreTimeout(f"wait timeout after {limit:g} s for {', '.join(keys)} in the store at {self._where}")

    def close(self) -> None:
        """Stop using it. May be called more than once; not while another thread waits."""
        self._break("it was closed")

    def _ask(self, request: bytes, read: Any = None) -> Any:
        with self._lock:
            if reason := self._broken or self._interruption.reason:
                raise StoreLost(f"the connection to the store at {self._where} is broken: {reason}")
            try:
                if self._half:
                    self._connect_again()
                self._connection.settimeout(self._answer)
                self._connection.sendall(request)
                return None if read is None else read(self._connection)
            except OSError as error:
                self._break(self._interruption.reason or str(error) or type(error).__name__)
                raise StoreLost(f"lost the store at {self._where}: {self._broken}") from error
            except BaseException as error:  # a signal: half an answer may be left
                if self._again is None:
                    self._break(self._interruption.reason or str(error) or type(error).__name__)
                else:
                    self._half = True
                    self._hang_up()
                raise

    def _connect_again(self) -> None:
        assert self._again is not None
        self._connection = self._again()
        self._half = False
        self._attach()

    def _attach(self) -> None:
        if self._connection.family in (AF_INET, AF_INET6):
            self._connection.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)  # many requests have no answer
        self._interruption.attach(self._connection)

    def _break(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._hang_up()

    def _hang_up(self) -> None:
        self._interruption.detach(self._connection)
        self._connection.close()

    def _key(self, key: str) -> bytes:
        return wire.text(self._prefix + key.encode())

    def _keys(self, keys: Sequence[str]) -> bytes:
        return struct.pack("=Q", len(keys)) + b"".join(map(self._key, keys))


def _read_number(connection: socket.socket) -> int:
    return int(struct.unpack("=q", wire.receive(connection, 8))[0])


_CONNECT_S = 30.0


class KeyWatch:
    """A thread that waits for one key on a connection of its own and then calls back, once. It can be stopped at once.

    A thread in torch's client cannot, and one that is still there when the process ends takes that down (SIGABRT).
    ``on_value`` gets the value. ``on_lost`` gets the error when the server goes away, or when its machine has not
    answered for about 40 s (TCP keep-alive). Both run on the thread.
    """

    def __init__(
        self,
        host: str,
        port: int,
        key: str,
        on_value: Callable[[bytes], None],
        on_lost: Callable[[Exception], None],
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._key, self._on_value, self._on_lost = key, on_value, on_lost
        self._stopped, self._get_ident = runtime.Event(), runtime.get_ident
        self._connection = greeted(host, port, _CONNECT_S, runtime)
        self._connection.settimeout(None)
        wire.keep_alive(self._connection)
        self._thread = runtime.Thread(target=self._run, name=f"rdzv-watch-{key}")
        self._thread.start()

    def stop(self) -> None:
        """Stop waiting: no call-back begins after this returns. May be called more than once, and from a call-back."""
        self._stopped.set()
        try:
            self._connection.shutdown(SHUT_RDWR)
        except OSError:
            pass  # it has already gone
        if self._get_ident() != self._thread.ident:
            self._thread.join()

    def _run(self) -> None:
        with self._connection:
            try:
                value = wire.wait_and_get(self._connection, self._key)
            except Exception as error:  # it has gone, or says what no store says
                if not self._stopped.is_set():
                    self._on_lost(error)
                return
        if not self._stopped.is_set():
            self._on_value(value)
