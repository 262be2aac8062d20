"""Waits for a key on a connection of our own: the server tells us, and the wait can be stopped at once.

torch's client could do the waiting, but a thread inside it cannot be stopped, and one that is still there when the
process ends takes the process down (SIGABRT) if the server ends first.
"""

from __future__ import annotations

from collections.abc import Callable

from rdzv_plugins.kvstore.sockets.reach import dial
from rdzv_plugins.kvstore.tcpstore import wire
from rdzv_plugins.kvstore.tcpstore.keep_alive import keep_alive
from rdzv_plugins.runtime import SHUT_RDWR, SYSTEM, Runtime

_CONNECT_S = 30.0


class KeyWatch:
    """A thread that waits for one key and then calls back, once.

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
        self._connection = dial(host, port, _CONNECT_S, runtime=runtime)
        try:
            wire.greet(self._connection)
        except OSError:
            self._connection.close()
            raise
        self._connection.settimeout(None)
        keep_alive(self._connection)
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


class AwaitedKey:
    """Waits for one key from the main thread: unlike a wait inside torch, a signal interrupts it."""

    def __init__(self, host: str, port: int, key: str, runtime: Runtime = SYSTEM) -> None:
        self._done = runtime.Event()
        self._value: bytes | None = None
        self._error: Exception | None = None
        self._watch = KeyWatch(host, port, key, self._found, self._lost, runtime)

    def wait(self, timeout: float) -> bytes | None:
        """The value, or None after ``timeout`` seconds. Raises ``OSError`` when the server is lost."""
        self._done.wait(max(0.0, timeout))
        if self._error is not None:
            raise self._error
        return self._value

    def stop(self) -> None:
        """Stop waiting."""
        self._watch.stop()

    def _found(self, value: bytes) -> None:
        self._value = value
        self._done.set()

    def _lost(self, error: Exception) -> None:
        self._error = error
        self._done.set()
