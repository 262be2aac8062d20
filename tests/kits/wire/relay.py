"""A way between a proxy and its root that tests break."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from kits.hooked_relay import HookedRelay


class Relay(HookedRelay):
    """Passes on what comes to its port to another one of 127.0.0.1 and back; tests break it.

    What it holds when it breaks is lost, and so is what has come to its sockets.
    """

    def __init__(self, port: int) -> None:
        self._broken = self._half = self._stalled = self._closed = False
        self._left: dict[bool, int | None] = {True: None, False: None}
        self._spoil: Callable[[bytes], bytes] = bytes
        self.passed = {True: 0, False: 0}
        """Bytes towards the root (True), and from it (False)."""
        super().__init__("127.0.0.1", port)

    def break_(self) -> None:
        """Close all connections. New ones are taken, and nobody is there, until ``mend``."""
        with self._changed:
            self._broken, self._half = True, False
            self._left = {True: None, False: None}
            self.cut()
            self._changed.notify_all()

    def break_half(self) -> None:
        """Close the connections to the root, and say nothing to the other end until ``break_``."""
        with self._changed:
            self._broken = self._half = True
            for _, called in self._pairs:
                with contextlib.suppress(OSError):
                    called.shutdown(socket.SHUT_RDWR)

    def break_after(self, size: int, *, upward: bool) -> None:
        """Break in that direction when so many bytes more have passed, however they come."""
        with self._changed:
            self._left[upward] = size

    def spoil(self, change: Callable[[bytes], bytes]) -> None:
        """Change what passes, as that does, to as many other bytes."""
        self._spoil = change

    def stall(self) -> None:
        """Let nothing pass, and close nothing, until ``mend``: what is held then is not lost."""
        with self._changed:
            self._stalled = True

    def mend(self) -> None:
        """Let everything pass again, and take new connections."""
        with self._changed:
            self._broken = self._stalled = False
            self._changed.notify_all()

    @property
    def broken(self) -> bool:
        with self._changed:
            return self._broken

    def refuse(self) -> None:
        """Break, and nobody listens any more."""
        super().refuse()
        self.break_()

    def __exit__(self, *error: object) -> None:
        self.refuse()
        with self._changed:
            self._closed = True
            self.mend()
        super().__exit__(*error)

    def _dial(self) -> socket.socket:
        with self._changed:
            self._changed.wait_for(lambda: not self._broken)
            if self._closed:
                raise ConnectionAbortedError
        return super()._dial()

    def _admit(self, caller: socket.socket, called: socket.socket) -> None:
        with self._changed:
            super()._admit(caller, called)
            if self._broken:  # since it was dialled
                self.cut()

    def _part(self, data: bytes, answers: bool) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: not self._stalled or self._broken)
            left = self._left[not answers]
            if left is not None:
                data = data[:left]
                self._left[not answers] = left - len(data)
        return self._spoil(data)

    def _passed(self, part: bytes, answers: bool) -> None:
        self.passed[not answers] += len(part)
        with self._changed:
            if self._left[not answers] == 0:
                self.break_()

    def _end(self, answers: bool) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._half)
