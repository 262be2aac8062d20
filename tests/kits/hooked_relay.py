"""A relay that tests can do anything to: they extend ``_part``, ``_passed`` or ``_end``, or how it dials and admits."""

from __future__ import annotations

import contextlib
import socket

from rdzv_plugins.testing.relay import Relay


class HookedRelay(Relay):
    """Each of these methods is called by the threads of the connections."""

    connections = 0
    """How many have come through so far."""

    def accept(self) -> None:
        """Accept connections again, at the same port, after ``refuse``."""
        with self._changed:
            self._refused = False
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self._start(self._accept)

    def _admit(self, caller: socket.socket, called: socket.socket) -> None:
        with self._changed:
            self.connections += 1
            super()._admit(caller, called)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with self._changed:
            answers = any(source is called for _, called in self._pairs)
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                while data:
                    part = self._part(data, answers)
                    target.sendall(part)
                    data = data[len(part) :]
                    self._passed(part, answers)
        self._end(answers)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _part(self, data: bytes, answers: bool) -> bytes:
        """As much of the beginning of ``data`` as may pass now, towards the callers (``answers``) or away from them."""
        self._wait()
        return data

    def _passed(self, part: bytes, answers: bool) -> None:
        """Note that ``part`` has passed."""

    def _end(self, answers: bool) -> None:
        """Called before an end is passed on; it is held, too."""
        self._wait()
