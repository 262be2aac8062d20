"""Is another node's process gone? A node's own port, which tells, and the watch of the others' ports.

A process is proved gone by three things, in this order and seen by the same node:

1. It has answered at its own port, by its id, and both ends have named the same two addresses: nothing is in between
   (address translation, a relay), so that a refusal is the host's own.
2. That connection was closed, in order and without a last word. Nobody but the kernel of its host does that, when the
   process has ended.
3. Its host refuses a new one.

Anything else proves nothing: silence, a reset, a refusal by a host that was never reached, an answer from somebody
else. Case by case: docs/internals/rendezvous.md, *Is a process gone?*.

What is said on a connection, each one line of UTF-8 that ends in a line feed; addresses as that process sees them::

    the dialling end     rdzv-alive 1 <node id>
    the listening end    rdzv-here 1 <node id> <its own address and port> <those of the other end>
    the listening end    rdzv-waits          the service does not do what its node needs; may be repeated
    the listening end    rdzv-bye            it closes this connection of its own will
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import ipaddress
import itertools
import logging
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rdzv_plugins import errors
from rdzv_plugins.elastic.keys import LeaderInfo, Member
from rdzv_plugins.endpoints import is_loopback_address
from rdzv_plugins.kvstore.coordination.reactor import Handler, close_in_children, reactor
from rdzv_plugins.kvstore.sockets.listening import bind
from rdzv_plugins.options import PortRange
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
    import socket
    from queue import SimpleQueue

logger = logging.getLogger(__name__)

_PART_S = _ANSWER_S = 5.0
_HELLO_S = 5.0  # seconds for a caller to say whom it wants; after that it is disconnected
_MOST_UNIDENTIFIED = 64
_MOST_IDENTIFIED = 256
_ACCEPTED_AT_ONCE = 16
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True)
class Peer:
    """A node by its id, and where to dial it: an IP address and a port."""

    node_id: str
    host: str
    port: int
    name: str = ""  # the name it answers to there, if that is not its id


def peer_of(other: Member | LeaderInfo, machine: str) -> Peer | None:
    """How to dial another node from ``machine``; None if it does not say, or gives only a name."""
    if not other.listens:
        return None
    near = other.machine == machine or not is_loopback_address(other.address)
    host = other.address if near else other.public
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None
    name = name_of(other.node_id, other.incarnation) if other.incarnation else ""
    return Peer(other.node_id, host, other.listens, name)


def name_of(node_id: str, moves: int) -> str:
    """The name a node answers to at its own port.

    What is proved there about it holds for one of several endpoints only. So the name is not its id alone: the next
    port that it opens may have the same number as the one before.
    """
    return f"{node_id}.{moves}" if moves else node_id


WAITS = b"rdzv-waits\n"
BYE = b"rdzv-bye\n"
MOST_BYTES = 1024  # the most bytes of a line


def hello(node_id: str) -> bytes:
    """What the dialling end says: whom it wants."""
    return f"rdzv-alive 1 {node_id}\n".encode()


def answer(node_id: str, listener: Any, caller: Any) -> bytes:
    """What the listening end says. ``listener`` and ``caller`` are the connection's ends as the socket names them."""
    return f"rdzv-here 1 {node_id} {_plain(listener)} {_plain(caller)}\n".encode()


def _plain(end: Any) -> str:
    """An address and port in one form, whatever kind of socket has named it."""
    address = ipaddress.ip_address(str(end[0]).partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return f"{mapped or address} {end[1]}"


Outcome = Literal["refused", "closed", "unclear"]
"""``refused``: the first packet was answered by a refusal.

``closed``: the right process had answered, and then its kernel closed the connection, in order and without a last word.
``unclear``: anything that proves nothing.
"""


class _Connection(Handler):
    """One end of a connection to a node's own port. On the reactor's thread only."""

    connection: socket.socket

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.answered = self._over = False
        self._received = b""

    def fileno(self) -> int:
        return self.connection.fileno()

    def readable(self) -> None:
        if self._over:
            return
        try:
            received = self.connection.recv(MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:  # reset: by its host, or by something in between
            self._end("unclear")
        else:
            self._take(received)

    def tick(self, now: float) -> None:
        if not self._over and not self.answered:
            self._end("unclear")

    def failed(self, error: Exception) -> None:
        self._end("unclear")

    def close(self) -> None:
        """End it. May be repeated."""
        if not self._over:
            self._over = True
            with contextlib.suppress(OSError, KeyError):  # it was not being served yet
                reactor(self._runtime).remove(self)
            self.connection.close()

    def _take(self, received: bytes) -> None:
        """These bytes have come; none: the other end has closed it."""
        raise NotImplementedError

    def _end(self, outcome: Outcome) -> None:
        self.close()


class ProbePort(Handler):
    """This node's own port, another after a move: where others see whether its process lives.

    The work is done on the thread of the process's connections, which it never blocks. A caller that names this node is
    answered, and its connection is held until either end goes; anybody else is disconnected without a word. A stopped
    process answers nobody: its kernel then accepts connections, which says nothing. ``listen`` and ``part`` are for one
    thread at a time, the rest for any.
    """

    def __init__(self, local_addr: str | None, runtime: Runtime) -> None:
        """``local_addr``: the address that was given for this node."""
        self._local_addr, self._runtime, self._pid = local_addr, runtime, runtime.getpid()
        self.port = 0
        """0 while it is not open, or could not be kept open. Existing connections stay until ``close``."""
        self._is_open = self._closing = self._waits = self._told = False
        self._ended = runtime.Event()  # all have been told
        self._unidentified: dict[_Caller, None] = {}  # in order of arrival
        self._identified: dict[_Caller, None] = {}

    def listen(self, name: str, address: str, public: str) -> int:
        """Open it unless it is open: there others see if ``name`` lives. 0 if there is none, and they have to wait."""
        if self.port:
            return self.port
        own = address if self._local_addr and is_loopback_address(address) else public
        try:
            self._socket = bind(own, PortRange(), "the port by which other nodes see this one live", self._runtime)
            self._socket.setblocking(False)
            close_in_children(self._socket, self._runtime)
            self._name, self._hello = name, hello(name)
            self._closing, self._waits, self._told = False, False, False  # first: a tick may still come
            self._ended.clear()
            self.port, self._is_open = int(self._socket.getsockname()[1]), True
            reactor(self._runtime).add(self, self._runtime.monotonic())
        except (errors.AddressInUse, OSError) as error:
            logger.debug("other nodes cannot see whether this one lives: %s", error)
            if self.port:  # nobody serves it
                self._socket.close()
            self.port, self._is_open = 0, bool(self._identified)
            self.close()  # whoever is connected since before
        return self.port

    def close(self) -> None:
        """Stop listening, and tell whoever is connected that this was intended. May be repeated."""
        self._closing = True
        self._tick_soon()

    def note_outage(self, lasts: bool) -> None:
        """The service does not do what this node needs, or does again: whoever watches this node needs it, too."""
        self._waits = lasts
        self._tick_soon()

    def part(self) -> bool:
        """Close it once all are told: from now on nothing seen here proves anything to them. False if it was not open.

        Raises ``TimeoutError`` if they cannot be told now.
        """
        if not self._is_open:
            return False
        self.close()
        if not self._ended.wait(_PART_S):
            raise TimeoutError("this node's own port could not be closed in time")
        self._is_open = False
        return True

    def fileno(self) -> int:
        return self._socket.fileno()

    def readable(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    # existing connections stay; new ones are refused, which alone proves nothing
                    logger.debug("the port by which other nodes see this one live is closed: %s", error)
                    self._close_port()
                    return
                continue
            connection.setblocking(False)
            close_in_children(connection, self._runtime)
            caller = _Caller(self, connection, self._hello, self._runtime)
            try:
                reactor(self._runtime).add(caller, self._runtime.monotonic() + _HELLO_S)
            except OSError:
                connection.close()
                continue
            self._unidentified[caller] = None
            if len(self._unidentified) > _MOST_UNIDENTIFIED:
                next(iter(self._unidentified)).close()

    def greeted(self, caller: _Caller) -> bytes:
        """The answer to a caller that has named this node. By that caller; ``OSError`` if it has gone meanwhile."""
        self._unidentified.pop(caller, None)
        self._identified[caller] = None
        if len(self._identified) > _MOST_IDENTIFIED:
            next(iter(self._identified)).close()
        said = answer(self._name, caller.connection.getsockname(), caller.connection.getpeername())
        return said + WAITS if self._told else said

    def left(self, caller: _Caller) -> None:
        """Forget a connection that has ended. Called by its caller, on the reactor's thread."""
        self._unidentified.pop(caller, None)
        self._identified.pop(caller, None)

    def tick(self, now: float) -> None:
        if self._closing:
            self._end()
        elif self._told != self._waits:
            self._told = self._waits
            for caller in list(self._identified) if self._told else ():
                caller.say(WAITS)

    def failed(self, error: Exception) -> None:
        self._end()

    def _tick_soon(self) -> None:
        if self._is_open and self._pid == self._runtime.getpid():  # otherwise the thread is the parent's
            reactor(self._runtime).remind(self, self._runtime.monotonic())

    def _end(self) -> None:
        for caller in list(itertools.chain(self._unidentified, self._identified)):
            caller.close()
        self._close_port()
        self._ended.set()

    def _close_port(self) -> None:
        if self.port:
            self.port = 0
            reactor(self._runtime).remove(self)
            self._socket.close()


class _Caller(_Connection):
    """A connection that was accepted."""

    def __init__(self, server: ProbePort, connection: socket.socket, wanted: bytes, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.connection, self._server, self._wanted = connection, server, wanted

    def _take(self, received: bytes) -> None:
        self._received += received
        if not received or not self._wanted.startswith(self._received):
            self.close()
        elif self._received == self._wanted:
            try:
                self.connection.send(self._server.greeted(self))  # the first bytes that are sent, so there is room
                self.answered = True
            except OSError:  # it has ended in the meantime
                self.close()

    def say(self, word: bytes) -> None:
        """Tell it something."""
        with contextlib.suppress(OSError):  # it takes nothing, or has ended, and will be told then
            self.connection.send(word)

    def close(self) -> None:
        """End it, with a last word if the caller was answered. May be repeated."""
        if not self._over:
            self._server.left(self)
            if self.answered:
                self.say(BYE)
            super().close()


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
            watched.dial.close()

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


class ProbeConnection(_Connection):
    """A connection to the own port of a node that is ``watched``.

    ``monitor`` is told once at most that the node has ``answered``, that it ``waits`` for the service, and once that
    the connection has ``ended``; nothing of that by ``start``. Once the right process has answered, directly, whatever
    happens to the connection is its host's own word.
    """

    def __init__(self, watched: _Watched, monitor: PeerMonitor, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._watched, self._monitor = watched, monitor
        self._peer = peer = watched.peer
        self._name = peer.name or peer.node_id
        self._expected, self._connecting = b"", True

    def start(self) -> Outcome | None:
        """Dial. Returns the outcome if it is known at once; then nothing is called."""
        family = AF_INET6 if ":" in self._peer.host else AF_INET
        try:
            self.connection = self._runtime.socket(family, SOCK_STREAM | SOCK_NONBLOCK)
        except OSError:  # no descriptor is left
            return "unclear"
        close_in_children(self.connection, self._runtime)
        try:
            error = self.connection.connect_ex(self._where(family))
            if error not in (0, errno.EINPROGRESS):
                self.close()
                return _outcome(error)
            reactor(self._runtime).add(self, self._runtime.monotonic() + _ANSWER_S)
            reactor(self._runtime).watch_room(self, True)
        except (OSError, ValueError, TypeError, OverflowError) as error:  # a member may say anything about itself
            logger.debug("node %s cannot be dialled at %r: %s", self._peer.node_id, self._peer.host, error)
            self.close()
            return "unclear"
        return None

    def _where(self, family: int) -> Any:
        """The node's address, for the socket. Asks no name service; ``OSError`` if there is no such interface."""
        if "%" not in self._peer.host:
            return self._peer.host, self._peer.port
        numeric = AI_NUMERICHOST | AI_NUMERICSERV
        return self._runtime.getaddrinfo(self._peer.host, self._peer.port, family, SOCK_STREAM, flags=numeric)[0][4]

    def writable(self) -> None:
        if not self._over and self._connecting:
            self._connected()

    def readable(self) -> None:
        if self._connecting:
            self.writable()
        else:
            super().readable()

    def _take(self, received: bytes) -> None:
        if not received:
            self._end("closed" if self.answered and not self._received else "unclear")
            return
        self._received += received
        if not self.answered and self._received.startswith(self._expected):
            self.answered, self._received = True, self._received[len(self._expected) :]
            self._monitor.answered(self._watched)
        if self.answered:
            self._take_words()
        elif not self._expected.startswith(self._received):
            self._end("unclear")

    def _take_words(self) -> None:
        waits = False
        while self._received.startswith(WAITS):
            waits, self._received = True, self._received[len(WAITS) :]
        if waits:
            self._monitor.on_waits()
        if not WAITS.startswith(self._received):  # one that leaves of its own will says a last word
            self._end("unclear")

    def _connected(self) -> None:
        error = self.connection.getsockopt(SOL_SOCKET, SO_ERROR)
        if error:
            self._end(_outcome(error))
            return
        try:
            there, here = self.connection.getpeername(), self.connection.getsockname()
            self.connection.send(hello(self._name))
        except OSError:
            self._end("unclear")
            return
        self._connecting = False
        self._expected = answer(self._name, there, here)
        reactor(self._runtime).watch_room(self, False)

    def _end(self, outcome: Outcome) -> None:
        if not self._over:
            self.close()
            self._monitor.ended(self._watched, outcome)


def _outcome(error: int) -> Outcome:
    return "refused" if error == errno.ECONNREFUSED else "unclear"
