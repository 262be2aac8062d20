"""The port of a node's own, at which its host answers, or refuses, whoever wants to know whether its process lives."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import socket
import threading
import time

from rdzv_plugins.elastic.liveness.greeting import BYE, MOST_BYTES, answer, hello
from rdzv_plugins.kvstore.coordination.reactor import close_in_children, reactor
from rdzv_plugins.kvstore.sockets.listening import bind
from rdzv_plugins.options import PortRange

logger = logging.getLogger(__name__)

_HELLO_S = 5.0
"""Who has not said by then whom it wants is a stranger."""
_MOST_STRANGERS = 64
_MOST_KNOWN = 256
_AT_ONCE = 16
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """Listens until ``close``, on the thread of the process' connections, and never blocks it. Thread-safe.

    Who names ``node_id`` is answered, and its connection is held until either end goes; anybody else is hung up on
    without a word. A process that is stopped answers nobody: then its kernel accepts, and that says nothing.
    """

    def __init__(self, node_id: str, host: str) -> None:
        """``host``: an address of this machine, as for ``bind``. Raises ``AddressInUse`` where no port can be had."""
        self._node_id, self._hello = node_id, hello(node_id)
        self._socket = bind(host, PortRange(), "the port by which other nodes see this one live")
        self._socket.setblocking(False)
        close_in_children(self._socket)
        self.port: int = self._socket.getsockname()[1]
        """0 once it could not be kept open; who is connected stays so until ``close``."""
        self._pid = os.getpid()
        self._closing = self._over = False
        self._ended = threading.Event()
        self._strangers: dict[_Caller, None] = {}  # in the order in which they came
        self._known: dict[_Caller, None] = {}
        reactor().add(self, time.monotonic())

    def close(self) -> None:
        """Listen no longer, and tell whoever is connected that this was meant. May be repeated."""
        self._closing = True
        if self._pid == os.getpid():  # else the thread is the parent's
            reactor().remind(self, time.monotonic())

    def part(self, timeout: float) -> bool:
        """As ``close``, and wait until all have been told: from now on nothing of this one proves anything to them."""
        self.close()
        return self._ended.wait(timeout)

    def fileno(self) -> int:
        return self._socket.fileno()

    def readable(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    # what is connected stays so; new ones are refused, which alone proves nothing
                    logger.debug("the port by which other nodes see this one live is closed: %s", error)
                    self._close_port()
                    return
                continue
            connection.setblocking(False)
            close_in_children(connection)
            caller = _Caller(self, connection, self._hello)
            try:
                reactor().add(caller, time.monotonic() + _HELLO_S)
            except OSError:
                connection.close()
                continue
            self._strangers[caller] = None
            if len(self._strangers) > _MOST_STRANGERS:
                next(iter(self._strangers)).hang_up()

    def greeted(self, caller: _Caller) -> bytes:
        """What is answered to one that has named this node: called by it, on the reactor's thread.

        Raises ``OSError`` if its connection has ended meanwhile.
        """
        self._strangers.pop(caller, None)
        self._known[caller] = None
        if len(self._known) > _MOST_KNOWN:
            next(iter(self._known)).hang_up()
        return answer(self._node_id, caller.socket.getsockname(), caller.socket.getpeername())

    def left(self, caller: _Caller) -> None:
        """Forget a connection that has ended: called by it, on the reactor's thread."""
        self._strangers.pop(caller, None)
        self._known.pop(caller, None)

    def writable(self) -> None: ...

    def tick(self, now: float) -> None:
        if self._closing:
            self._end()

    def failed(self, error: Exception) -> None:
        self._end()

    def forget(self) -> None: ...

    def _end(self) -> None:
        for caller in list(itertools.chain(self._strangers, self._known)):
            caller.hang_up()
        self._close_port()
        self._ended.set()

    def _close_port(self) -> None:
        self.port = 0
        if not self._over:
            self._over = True
            reactor().remove(self)
            self._socket.close()


class _Caller:
    """A connection that was accepted."""

    def __init__(self, listener: Listener, connection: socket.socket, wanted: bytes) -> None:
        self._listener, self.socket, self._wanted = listener, connection, wanted
        self._said = b""
        self._answered = self._over = False

    def fileno(self) -> int:
        return self.socket.fileno()

    def readable(self) -> None:
        if self._over:
            return
        try:
            said = self.socket.recv(MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        self._said += said
        if not said or not self._wanted.startswith(self._said):
            self.hang_up()
        elif self._said == self._wanted:
            try:
                self.socket.send(self._listener.greeted(self))  # the first bytes that are sent: there is room
                self._answered = True
            except OSError:  # it has ended meanwhile
                self.hang_up()

    def writable(self) -> None: ...

    def tick(self, now: float) -> None:
        if not self._answered:
            self.hang_up()

    def failed(self, error: Exception) -> None:
        self.hang_up()

    def forget(self) -> None: ...

    def hang_up(self) -> None:
        """End it, with a last word to whom was answered. On the reactor's thread; may be repeated."""
        if self._over:
            return
        self._over = True
        self._listener.left(self)
        with contextlib.suppress(OSError):
            if self._answered:
                self.socket.send(BYE)
        reactor().remove(self)
        self.socket.close()
