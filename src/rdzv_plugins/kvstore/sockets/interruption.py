"""Ends waits on sockets from another thread when what they wait for can no longer come.

A socket that is shut down wakes whoever is blocked in it, even if the machine at the other end vanished silently and
TCP would go on for minutes. Every wait of an agent in the store of a round is under one of these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rdzv_plugins.runtime import SHUT_RDWR, SYSTEM, Runtime

if TYPE_CHECKING:
    import socket


class Interrupted(ConnectionError):
    """The wait was ended; ``str()`` says why."""


class Interruption:
    """An interruption that comes at most once, and stays.

    Thread-safe; ``interrupt`` never blocks, so any thread may call it.
    """

    def __init__(self, runtime: Runtime = SYSTEM) -> None:
        self._lock = runtime.Lock()  # held for system calls that return at once
        self._sockets: dict[socket.socket, None] = {}  # in the order in which they came
        self._came = runtime.Event()
        self._reason = ""

    @property
    def reason(self) -> str:
        """Why it came; "" while it has not."""
        return self._reason

    def interrupt(self, reason: str) -> None:
        """End all waits under it, now and later, for ``reason``. Only the first reason counts."""
        with self._lock:
            self._reason = self._reason or reason
            for each in self._sockets:
                _shut_down(each)
        self._came.set()

    def attach(self, connection: socket.socket) -> None:
        """Shut this connection down when the interruption comes, or at once if it has come."""
        with self._lock:
            self._sockets[connection] = None
            if self._reason:
                _shut_down(connection)

    def detach(self, connection: socket.socket) -> None:
        """Let go of a connection before it is closed: its descriptor may soon belong to another file.

        May be repeated.
        """
        with self._lock:
            self._sockets.pop(connection, None)

    @contextlib.contextmanager
    def over(self, connection: socket.socket) -> Iterator[None]:
        """Attached within the block. Raises ``Interrupted`` if the interruption came before or during it."""
        self.attach(connection)
        try:
            yield
        finally:
            self.detach(connection)
            self.check()

    def check(self) -> None:
        """Raise ``Interrupted`` if the interruption has come."""
        if self._reason:
            raise Interrupted(self._reason)

    def sleep(self, seconds: float) -> None:
        """Sleep for ``seconds``, or less if the interruption comes."""
        self._came.wait(seconds)


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has already gone
        connection.shutdown(SHUT_RDWR)
