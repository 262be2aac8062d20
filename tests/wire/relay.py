"""A way between a proxy and its root that tests break."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable


class Relay:
    """Passes on what comes to its port to another one and back; tests break it.

    What it holds when it breaks is lost, and so is what has come to its sockets.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._changed = threading.Condition()
        self._broken = self._half = self._stalled = self._closed = False
        self._left: dict[bool, int | None] = {True: None, False: None}
        self._sockets: list[socket.socket] = []
        self._spoil: Callable[[bytes], bytes] = bytes
        self.passed = {True: 0, False: 0}
        """Bytes towards the root (True), and from it (False)."""
        self.connections = 0
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def break_(self) -> None:
        """Close all connections. New ones are taken, and nobody is there, until ``mend``."""
        with self._changed:
            self._broken, self._half = True, False
            self._left = {True: None, False: None}
            for each in self._sockets:
                _shut(each)
            self._sockets.clear()
            self._changed.notify_all()

    def break_half(self) -> None:
        """Close the connections to the root, and say nothing to the other end until ``break_``."""
        with self._changed:
            self._broken = self._half = True
            for each in self._sockets[1::2]:
                _shut(each)

    def break_after(self, size: int, *, upward: bool) -> None:
        """Break in that direction when so many bytes more have passed, however they come."""
        with self._changed:
            self._left[upward] = size

    def spoil(self, change: Callable[[bytes], bytes]) -> None:
        """Change what passes, as that does."""
        self._spoil = change

    def stall(self) -> None:
        """Let nothing pass, and close nothing, until ``mend``: what is held then is not lost."""
        with self._changed:
            self._stalled = True

    def mend(self) -> None:
        with self._changed:
            self._broken = self._stalled = False
            self._changed.notify_all()

    @property
    def broken(self) -> bool:
        with self._changed:
            return self._broken

    def refuse(self) -> None:
        """Break, and nobody listens any more."""
        _shut(self._listener)
        self._listener.close()
        self.break_()

    def close(self) -> None:
        self._closed = True
        self.refuse()
        self.mend()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                self._changed.wait_for(lambda: not self._broken)
                if self._closed:
                    caller.close()
                    return
                try:
                    called = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    caller.close()
                    continue
                self.connections += 1
                pair = (caller, called)
                self._sockets += pair
            for each in pair:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            closing = threading.Barrier(2)  # a descriptor is not used again while the other thread has it
            for upward, (source, target) in ((True, pair), (False, pair[::-1])):
                threading.Thread(target=self._pass, args=(source, target, upward, closing), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, upward: bool, closing: threading.Barrier) -> None:
        try:
            while data := source.recv(1 << 16):
                with self._changed:
                    self._changed.wait_for(lambda: not self._stalled or self._broken)
                    if source not in self._sockets:
                        break
                    left = self._left[upward]
                    if left is not None:
                        data = data[:left]
                        self._left[upward] = left - len(data)
                target.sendall(self._spoil(data))
                self.passed[upward] += len(data)
                if left is not None and left <= len(data):
                    with self._changed:
                        if source in self._sockets:  # else somebody has broken it meanwhile, and perhaps mended it
                            self.break_()
        except OSError:
            pass
        with self._changed:
            self._changed.wait_for(lambda: not self._half)
        _shut(source)
        _shut(target)
        closing.wait()
        source.close()


def _shut(each: socket.socket) -> None:
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
