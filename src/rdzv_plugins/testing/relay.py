"""A way to a service that tests can cut, hold up and slow down. TCP on loopback, both ways."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R", bound="Relay")

_CONNECT_S = 30.0
_BLOCK = 1 << 16


class Relay:
    """``with Relay(host, port) as relay``: passes what comes to ``relay.port`` of 127.0.0.1 on, and back. Thread-safe.

    Nothing of it is left when the block ends.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._changed = threading.Condition()
        self._held = self._refused = False
        self._delay = 0.0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def cut(self) -> None:
        """Break all connections, with what is on its way; new ones come through."""
        with self._changed:
            for pair in self._pairs:
                _shut(*pair)

    def refuse(self) -> None:
        """Do what ``cut`` does, and refuse new connections."""
        with self._changed:
            self._refused = True  # also for one that was just accepted
        _shut(self._listener)  # ends its thread, which closes it
        self.cut()

    def hold(self) -> None:
        """Let nothing through, and break nothing: a partitioned network. New connections are accepted and held."""
        with self._changed:
            self._held = True

    def let_go(self) -> None:
        """Let everything that was held through, in order, and everything that follows."""
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def slow(self, seconds: float) -> None:
        """Delay everything by ``seconds``, each way, from now on."""
        with self._changed:
            self._delay = seconds
            self._changed.notify_all()

    def __enter__(self: R) -> R:
        return self

    def __exit__(self, *_: object) -> None:
        self.slow(0)
        _shut(self._listener)
        self._threads[0].join()
        self.let_go()
        while True:
            self.cut()
            threads = [thread for thread in self._threads if thread.is_alive()]
            if not threads:
                return
            threads[0].join(0.1)  # one that was just connecting is cut the next time

    def _start(self, function: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=function, args=arguments, name="conformance-relay", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with self._listener as listener:
            while True:
                try:
                    caller, _ = listener.accept()
                except OSError:  # refused from now on
                    return
                try:
                    called = self._dial()
                except OSError:
                    caller.close()
                    continue
                called.settimeout(None)
                self._admit(caller, called)  # by this thread: once it has ended, all pairs are known
                self._start(self._serve, caller, called)

    def _serve(self, caller: socket.socket, called: socket.socket) -> None:
        with caller, called:
            for each in (caller, called):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answers = threading.Thread(target=self._pass_on, args=(called, caller), name="conformance-relay")
            answers.start()
            self._pass_on(caller, called)
            answers.join()
            with self._changed:
                self._pairs.remove((caller, called))

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_BLOCK):
                self._wait()
                target.sendall(data)
        self._wait()  # an end is held, too: a partitioned network does not say that anybody has gone
        _shut(source, target)

    def _dial(self) -> socket.socket:
        """A connection to the service, for a caller. Raises ``OSError``."""
        return socket.create_connection(self._target, _CONNECT_S)

    def _admit(self, caller: socket.socket, called: socket.socket) -> None:
        with self._changed:
            self._pairs.append((caller, called))
            if self._refused:
                self.cut()

    def _wait(self) -> None:
        with self._changed:
            due = time.monotonic() + self._delay
            while self._held or (self._delay and time.monotonic() < due):
                self._changed.wait(None if self._held else due - time.monotonic())


def _shut(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
