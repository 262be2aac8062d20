"""A way to a service that tests hold up, break and spoil, each direction by itself."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from kits.eventually import eventually
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.testing.relay import Relay as Way


class Relay(Way):
    """Passes on what comes to its port, and back. Directions are ``answers``, and what callers say.

    What it holds when it breaks is lost, and so is what has come to its sockets.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.connections = 0
        """How many have come through so far."""
        self.passed = {True: 0, False: 0}
        """Bytes of answers (True), and of callers."""
        self._broken = self._half = self._stalled = self._closed = False
        self._left: dict[bool, int | None] = {True: None, False: None}
        """How many more bytes may pass in each direction; None: all."""
        self._counted: set[bool] = set()
        """The directions in which something has come since that was said."""
        self._at_limit: Callable[[], None] | None = None
        """What happens when they have passed; None: what comes then is held."""
        self._spoil: Callable[[bytes], bytes] = bytes
        super().__init__(host, port)
        self.endpoint = Endpoint("127.0.0.1", self.port)

    @property
    def is_used(self) -> bool:
        """A client has come this way, and has not left."""
        with self._changed:
            return bool(self._pairs)

    @property
    def broken(self) -> bool:
        with self._changed:
            return self._broken

    @property
    def is_free(self) -> bool:
        """All may pass: what was to happen after so many bytes has happened."""
        with self._changed:
            return self._left == {True: None, False: None}

    def break_(self) -> None:
        """Close all connections. New ones are taken, and nobody is there, until ``mend``."""
        with self._changed:
            self._broken, self._half = True, False
            self._left = {True: None, False: None}
            self.cut()
            self._changed.notify_all()

    def break_half(self) -> None:
        """Close the connections to the service, and say nothing to the other end until ``break_``."""
        with self._changed:
            self._broken = self._half = True
            for _, called in self._pairs:
                with contextlib.suppress(OSError):
                    called.shutdown(socket.SHUT_RDWR)

    def break_after(self, size: int, *, answers: bool) -> None:
        """Break when so many bytes more have passed in that direction, however they come."""
        self._limit(size, answers, self.break_)

    def cut_after(self, size: int, *, answers: bool) -> None:
        """The same once: from then on everything comes through, by other connections."""
        self._limit(size, answers, self.cut)

    def hold_after(self, size: int, *, answers: bool) -> None:
        """Let so many bytes more through in that direction, and no more until ``mend``."""
        self._limit(size, answers, None)

    def _limit(self, size: int, answers: bool, at_limit: Callable[[], None] | None) -> None:
        with self._changed:
            self._left[answers], self._at_limit = size, at_limit
            self._counted.discard(answers)

    def wait_held(self) -> None:
        """Until as much has come in a direction as ``hold_after`` lets through."""
        eventually(lambda: 0 in self._left.values(), lambda: f"{self._left} bytes left")

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
            if self._at_limit is None:
                self._left = {True: None, False: None}
            self._changed.notify_all()

    def refuse(self) -> None:
        """Break, and nobody listens any more."""
        super().refuse()
        self.break_()

    def accept(self) -> None:
        """Accept connections again, at the same port, after ``refuse``."""
        with self._changed:
            self._refused = False
            self.mend()
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self._start(self._accept)

    def __exit__(self, *error: object) -> None:
        self.refuse()  # else what is held would come through
        with self._changed:
            self._closed = True
            self.mend()
        super().__exit__(*error)

    # What the threads of the connections do

    def _dial(self) -> socket.socket:
        with self._changed:
            self._changed.wait_for(lambda: not self._broken)
            if self._closed:
                raise ConnectionAbortedError
        return super()._dial()

    def _admit(self, caller: socket.socket, called: socket.socket) -> None:
        with self._changed:
            self.connections += 1
            super()._admit(caller, called)
            if self._broken:  # since it was dialled
                self.cut()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with self._changed:
            answers = any(source is called for _, called in self._pairs)
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                while data:
                    part = self._part(data, answers)
                    target.sendall(self._spoil(part))
                    data = data[len(part) :]
                    self._note_passed(part, answers)
        with self._changed:  # an end is held, too
            self._changed.wait_for(lambda: not self._half)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _part(self, data: bytes, answers: bool) -> bytes:
        """As much of the beginning of ``data`` as may pass now."""
        with self._changed:
            self._changed.wait_for(lambda: self._broken or not (self._stalled or self._is_held(answers)))
            left = self._left[answers]
            if left is not None:
                data = data[:left]
                self._left[answers] = left - len(data)
                self._counted.add(answers)
            return data

    def _is_held(self, answers: bool) -> bool:
        return self._at_limit is None and self._left[answers] == 0

    def _note_passed(self, part: bytes, answers: bool) -> None:
        with self._changed:
            self.passed[answers] += len(part)
            # a part that has passed before there was a limit does not count
            if self._left[answers] == 0 and answers in self._counted and self._at_limit is not None:
                self._left[answers] = None
                self._at_limit()
