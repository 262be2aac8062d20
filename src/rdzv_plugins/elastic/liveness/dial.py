"""One connection to another node's own port: dialled, greeted, and then held for as long as it lasts."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable
from typing import Any, Literal

from rdzv_plugins.elastic.liveness.greeting import MOST_BYTES, WAITS, answer, hello
from rdzv_plugins.elastic.liveness.peer import Peer
from rdzv_plugins.kvstore.coordination.reactor import close_in_children, reactor
from rdzv_plugins.runtime import (
    AF_INET,
    AF_INET6,
    AI_NUMERICHOST,
    AI_NUMERICSERV,
    SO_ERROR,
    SOCK_NONBLOCK,
    SOCK_STREAM,
    SOL_SOCKET,
    Runtime,
)

logger = logging.getLogger(__name__)

Outcome = Literal["refused", "closed", "unclear"]
"""``refused``: the first packet was answered by a refusal.

``closed``: the right process had answered, and then its kernel closed the connection, in order and without a last word.
``unclear``: anything that proves nothing.
"""

_ANSWER_S = 5.0


class Dial:
    """A connection to another node's own port. For use on the reactor's thread only.

    ``on_answer`` is called once at most, ``on_waits`` when the node says that it waits for the service, and ``on_end``
    once; none is called from ``start``.
    """

    def __init__(
        self,
        peer: Peer,
        on_answer: Callable[[], None],
        on_waits: Callable[[], None],
        on_end: Callable[[Outcome], None],
        runtime: Runtime,
    ) -> None:
        self._runtime = runtime
        self._name = peer.name or peer.node_id
        self._peer, self._on_answer, self._on_waits, self._on_end = peer, on_answer, on_waits, on_end
        self._expected = self._heard = b""
        self._connecting, self._over = True, False
        self.answered = False
        """The right process has answered, directly: whatever happens to the connection now is its host's own word."""

    def start(self) -> Outcome | None:
        """Dial. Returns the outcome if it is known at once; then nothing is called."""
        family = AF_INET6 if ":" in self._peer.host else AF_INET
        try:
            self._socket = self._runtime.socket(family, SOCK_STREAM | SOCK_NONBLOCK)
        except OSError:  # no descriptor is left
            return "unclear"
        close_in_children(self._socket, self._runtime)
        try:
            error = self._socket.connect_ex(self._where(family))
            if error not in (0, errno.EINPROGRESS):
                self.hang_up()
                return _outcome(error)
            reactor(self._runtime).add(self, self._runtime.monotonic() + _ANSWER_S)
            reactor(self._runtime).watch_room(self, True)
        except (OSError, ValueError, TypeError, OverflowError) as error:  # a member may say anything about itself
            logger.debug("node %s cannot be dialled at %r: %s", self._peer.node_id, self._peer.host, error)
            self.hang_up()
            return "unclear"
        return None

    def _where(self, family: int) -> Any:
        """The node's address, for the socket.

        Asks no name service; raises ``OSError`` if there is no such interface.
        """
        if "%" not in self._peer.host:
            return self._peer.host, self._peer.port
        numeric = AI_NUMERICHOST | AI_NUMERICSERV
        return self._runtime.getaddrinfo(self._peer.host, self._peer.port, family, SOCK_STREAM, flags=numeric)[0][4]

    def hang_up(self) -> None:
        """End the connection; nothing is called. May be repeated."""
        if not self._over:
            self._over = True
            with contextlib.suppress(OSError, KeyError):  # it was not being served yet
                reactor(self._runtime).remove(self)
            self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def writable(self) -> None:
        if not self._over and self._connecting:
            self._connected()

    def readable(self) -> None:
        if self._over:
            return
        if self._connecting:
            self._connected()
            return
        try:
            heard = self._socket.recv(MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:  # reset: by its host, or by something in between
            self._end("unclear")
            return
        if not heard:
            self._end("closed" if self.answered and not self._heard else "unclear")
            return
        self._heard += heard
        if not self.answered and self._heard.startswith(self._expected):
            self.answered, self._heard = True, self._heard[len(self._expected) :]
            self._on_answer()
        if self.answered:
            self._hear_words()
        elif not self._expected.startswith(self._heard):
            self._end("unclear")

    def _hear_words(self) -> None:
        waits = False
        while self._heard.startswith(WAITS):
            waits, self._heard = True, self._heard[len(WAITS) :]
        if waits:
            self._on_waits()
        if not WAITS.startswith(self._heard):  # one that leaves of its own will says a last word
            self._end("unclear")

    def tick(self, now: float) -> None:
        if not self._over and not self.answered:
            self._end("unclear")

    def failed(self, error: Exception) -> None:
        self._end("unclear")

    def forget(self) -> None: ...

    def _connected(self) -> None:
        error = self._socket.getsockopt(SOL_SOCKET, SO_ERROR)
        if error:
            self._end(_outcome(error))
            return
        try:
            there, here = self._socket.getpeername(), self._socket.getsockname()
            self._socket.send(hello(self._name))
        except OSError:
            self._end("unclear")
            return
        self._connecting = False
        self._expected = answer(self._name, there, here)
        reactor(self._runtime).watch_room(self, False)

    def _end(self, outcome: Outcome) -> None:
        if not self._over:
            self.hang_up()
            self._on_end(outcome)


def _outcome(error: int) -> Outcome:
    return "refused" if error == errno.ECONNREFUSED else "unclear"
