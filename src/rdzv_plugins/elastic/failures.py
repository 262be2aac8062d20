"""Watches other nodes' processes, so that one that is gone is known at once, and no other is taken to be gone.

A process is proved gone by three things, in this order and seen by the same node:

1. It has answered at its own port, by its id, and both ends have named the same two addresses: nothing is in between.
2. That connection was closed, in order and without a last word. Nobody but the kernel of its host does that, when the
   process has ended.
3. Its host refuses a new one.

Anything else proves nothing: silence, a reset, a refusal by a host that was never reached, an answer from somebody
else. Case by case: docs/internals/rendezvous.md, *Is a process gone?*.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import logging
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rdzv_plugins.elastic.probe_port import MOST_BYTES, WAITS, Peer, answer, hello
from rdzv_plugins.kvstore.coordination.reactor import Handler, close_in_children, reactor
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

if TYPE_CHECKING:
    from queue import SimpleQueue

logger = logging.getLogger(__name__)


_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_SUSPECT_PAUSE_S, _LONGEST_SUSPECT_PAUSE_S = 0.02, 1.0
"""Seconds between two attempts to reach one that has closed: its port may close a moment after its connections."""
_LASTS_S = 1.0  # a connection that lasted this long was not closed on a whim
_PER_S, _AT_ONCE = 500.0, 64
"""A limit on first attempts: they are not urgent, and this process has other things to do."""
_OF_DESCRIPTORS = 4  # at most one in this many of this process's descriptors is used for watching


@dataclass
class _Watched:
    peer: Peer
    dial: ProbeConnection | None = None
    suspect: bool = False  # whether it has answered and its connection was then closed
    pause: float = _FIRST_PAUSE_S
    answered_at: float = 0.0
    after_close: float = 0.0
    """The pause after the connection next ends; grows while the node keeps answering and closing at once."""


class PeerMonitor:
    """Watches nodes until ``close``. Thread-safe; the work is done on the thread of the process's connections.

    ``on_gone`` is called once for each node whose process is proved gone, with its id, and ``on_waits`` when a node
    says that the service does not do what it needs. Both are called on that thread, and must return at once. If there
    are too few descriptors, some or all nodes are not watched; those count as living.
    """

    def __init__(self, on_gone: Callable[[str], None], on_waits: Callable[[], None], runtime: Runtime) -> None:
        self._on_gone, self.on_waits, self._runtime = on_gone, on_waits, runtime
        self._orders: SimpleQueue[Callable[[], None]] = self._runtime.SimpleQueue()
        self._watched: dict[str, _Watched] = {}
        self._turned_away: dict[str, Peer] = {}  # there are too few descriptors for these as well
        self._due: list[tuple[float, int, _Watched]] = []
        self._order = itertools.count()
        self._free_at = 0.0  # when the next first attempt may be made
        self._most = max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _OF_DESCRIPTORS)
        self._pid = self._runtime.getpid()
        self.is_closed = False
        """Whether it watches nobody, and will not: it was closed, or there are too few descriptors."""

    def add(self, peer: Peer) -> None:
        """Watch that node from now on, at that address and no other."""
        self._do(lambda: self._add(peer))

    def remove(self, node_id: str) -> None:
        """Stop watching it. What was under way may still be reported."""
        self._do(lambda: self._remove(node_id))

    def close(self) -> None:
        """Stop watching. May be repeated."""
        self._do(self._close)

    def _do(self, order: Callable[[], None]) -> None:
        if self._pid != self._runtime.getpid() or self.is_closed:  # in a child the thread is the parent's
            return
        self._orders.put(order)
        try:
            reactor(self._runtime).remind(self, self._runtime.monotonic())
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            logger.debug("other nodes' processes cannot be watched, their time to live counts: %s", error)
            self.is_closed = True

    def _add(self, peer: Peer) -> None:
        held = self._watched.get(peer.node_id)
        if held is not None and held.peer == peer:
            return
        self._let_go(peer.node_id)
        self._turned_away[peer.node_id] = peer
        self._take_in()
        if peer.node_id in self._turned_away:
            logger.debug("too few descriptors to watch node %s as well", peer.node_id)

    def _remove(self, node_id: str) -> None:
        self._turned_away.pop(node_id, None)
        self._let_go(node_id)
        self._take_in()

    def _let_go(self, node_id: str) -> None:
        watched = self._watched.pop(node_id, None)
        if watched is not None and watched.dial is not None:
            watched.dial.hang_up()

    def _take_in(self) -> None:
        """While there is room, take in those that were turned away, in order of arrival."""
        while self._turned_away and len(self._watched) < self._most:
            peer = self._turned_away.pop(next(iter(self._turned_away)))
            watched = self._watched[peer.node_id] = _Watched(peer)
            self._later(watched, 0.0)

    def _close(self) -> None:
        self.is_closed = True
        for node_id in list(self._watched):
            with contextlib.suppress(OSError):
                self._let_go(node_id)

    def _later(self, watched: _Watched, pause: float) -> None:
        now = self._runtime.monotonic()
        at = now + pause
        if not watched.suspect:
            self._free_at = max(self._free_at, now - _AT_ONCE / _PER_S) + 1 / _PER_S
            at = max(at, self._free_at)
        heapq.heappush(self._due, (at, next(self._order), watched))
        reactor(self._runtime).remind(self, at)

    def _dial(self, watched: _Watched) -> None:
        if self._watched.get(watched.peer.node_id) is not watched or watched.dial is not None:
            return
        watched.dial = ProbeConnection(watched, self, self._runtime)
        outcome = watched.dial.start()
        if outcome is not None:
            self.ended(watched, outcome)

    def answered(self, watched: _Watched) -> None:
        """Its process has answered, directly."""
        watched.suspect, watched.pause, watched.answered_at = False, _FIRST_PAUSE_S, self._runtime.monotonic()

    def ended(self, watched: _Watched, outcome: Outcome) -> None:
        """An attempt has failed, or a connection that was held has ended."""
        watched.dial = None
        if outcome == "closed":
            watched.suspect, watched.pause = True, _SUSPECT_PAUSE_S
            if self._runtime.monotonic() - watched.answered_at >= _LASTS_S:
                watched.after_close = 0.0
            self._later(watched, watched.after_close)
            watched.after_close = min(max(2 * watched.after_close, _SUSPECT_PAUSE_S), _LONGEST_SUSPECT_PAUSE_S)
        elif outcome == "refused" and watched.suspect:
            self._remove(watched.peer.node_id)
            self._on_gone(watched.peer.node_id)
        else:
            self._later(watched, watched.pause)
            longest = _LONGEST_SUSPECT_PAUSE_S if watched.suspect else _LONGEST_PAUSE_S
            watched.pause = min(2 * watched.pause, longest)

    def tick(self, now: float) -> None:
        while not self._orders.empty() and not self.is_closed:
            self._orders.get()()
        while self._due and self._due[0][0] <= now and not self.is_closed:
            self._dial(heapq.heappop(self._due)[2])

    def failed(self, error: Exception) -> None:
        self._close()


Outcome = Literal["refused", "closed", "unclear"]
"""``refused``: the first packet was answered by a refusal.

``closed``: the right process had answered, and then its kernel closed the connection, in order and without a last word.
``unclear``: anything that proves nothing.
"""

_ANSWER_S = 5.0


class ProbeConnection(Handler):
    """A connection to the own port of a node that is ``watched``. For use on the reactor's thread only.

    ``watch`` is told once at most that the node has ``answered``, that it ``waits`` for the service, and once that the
    connection has ``ended``; nothing of that by ``start``.
    """

    def __init__(self, watched: _Watched, watch: PeerMonitor, runtime: Runtime) -> None:
        self._watched, self._watch, self._runtime = watched, watch, runtime
        self._peer = peer = watched.peer
        self._name = peer.name or peer.node_id
        self._expected = self._heard = b""
        self._connecting, self._over = True, False
        self.answered = False
        """The right process has answered, directly: whatever happens to the connection now is its host's own word."""

    def start(self) -> Outcome | None:
        """ProbeConnection. Returns the outcome if it is known at once; then nothing is called."""
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
        """The node's address, for the socket. Asks no name service; ``OSError`` if there is no such interface."""
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
            self._watch.answered(self._watched)
        if self.answered:
            self._hear_words()
        elif not self._expected.startswith(self._heard):
            self._end("unclear")

    def _hear_words(self) -> None:
        waits = False
        while self._heard.startswith(WAITS):
            waits, self._heard = True, self._heard[len(WAITS) :]
        if waits:
            self._watch.on_waits()
        if not WAITS.startswith(self._heard):  # one that leaves of its own will says a last word
            self._end("unclear")

    def tick(self, now: float) -> None:
        if not self._over and not self.answered:
            self._end("unclear")

    def failed(self, error: Exception) -> None:
        self._end("unclear")

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
            self._watch.ended(self._watched, outcome)


def _outcome(error: int) -> Outcome:
    return "refused" if error == errno.ECONNREFUSED else "unclear"
