"""A node's own port, where its host answers or refuses whoever wants to know if the node's process lives.

What is said on a connection to it::

    the dialling end     rdzv-alive 1 <node id>
    the listening end    rdzv-here 1 <node id> <its own address and port> <those of the other end>
    the listening end    rdzv-waits          the service does not do what its node needs; may be repeated
    the listening end    rdzv-bye            it closes this connection of its own will

Each is one line of UTF-8 that ends in a line feed. The addresses are those that the listening process sees; the
dialling process (``failures``) compares them with what it sees itself. If they differ, something is in between (address
translation, a relay), and then a refusal would not be the host's own.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rdzv_plugins import errors
from rdzv_plugins.elastic.keys import LeaderInfo, Member
from rdzv_plugins.endpoints import is_loopback_address
from rdzv_plugins.kvstore.coordination.reactor import Handler, close_in_children, reactor
from rdzv_plugins.kvstore.sockets.listening import bind
from rdzv_plugins.options import PortRange
from rdzv_plugins.runtime import Runtime

if TYPE_CHECKING:
    import socket

logger = logging.getLogger(__name__)

_PART_S = 5.0
_HELLO_S = 5.0  # seconds for a caller to say whom it wants; after that it counts as a stranger
_MOST_STRANGERS = 64
_MOST_KNOWN = 256
_AT_ONCE = 16
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
    return Peer(
        other.node_id, host, other.listens, name_of(other.node_id, other.incarnation) if other.incarnation else ""
    )


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


class ProbeServer(Handler):
    """Listens until ``close``, on the thread of the process's connections, and never blocks that. Thread-safe.

    A caller that names ``node_id`` is answered, and its connection is held until either end goes; anybody else is
    disconnected without a word. A stopped process answers nobody: its kernel then accepts connections, which says
    nothing.
    """

    def __init__(self, node_id: str, host: str, runtime: Runtime) -> None:
        """``host`` is an address of this machine, as for ``bind``. Raises ``AddressInUse`` if no port is available."""
        self._runtime = runtime
        self._node_id, self._hello = node_id, hello(node_id)
        self._socket = bind(host, PortRange(), "the port by which other nodes see this one live", runtime)
        self._socket.setblocking(False)
        close_in_children(self._socket, self._runtime)
        self.port: int = self._socket.getsockname()[1]
        """The port; 0 once it could not be kept open. Existing connections stay until ``close``."""
        self._pid = self._runtime.getpid()
        self._closing = self._waits = self._told = False
        self._ended = self._runtime.Event()
        self._strangers: dict[_Caller, None] = {}  # in order of arrival
        self._known: dict[_Caller, None] = {}
        reactor(self._runtime).add(self, self._runtime.monotonic())

    def close(self) -> None:
        """Stop listening, and tell whoever is connected that this was intended. May be repeated."""
        self._closing = True
        self._tick_soon()

    def note_outage(self, lasts: bool) -> None:
        """Have whoever is connected told that the service does not do what this node needs, or no longer so."""
        self._waits = lasts
        self._tick_soon()

    def part(self, timeout: float) -> bool:
        """Like ``close``, and wait until all have been told: from now on nothing seen here proves anything to them."""
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
            self._strangers[caller] = None
            if len(self._strangers) > _MOST_STRANGERS:
                next(iter(self._strangers)).hang_up()

    def greeted(self, caller: _Caller) -> bytes:
        """The answer to a caller that has named this node. By that caller; ``OSError`` if it has gone meanwhile."""
        self._strangers.pop(caller, None)
        self._known[caller] = None
        if len(self._known) > _MOST_KNOWN:
            next(iter(self._known)).hang_up()
        said = answer(self._node_id, caller.socket.getsockname(), caller.socket.getpeername())
        return said + WAITS if self._told else said

    def left(self, caller: _Caller) -> None:
        """Forget a connection that has ended. Called by its caller, on the reactor's thread."""
        self._strangers.pop(caller, None)
        self._known.pop(caller, None)

    def tick(self, now: float) -> None:
        if self._closing:
            self._end()
        elif self._told != self._waits:
            self._told = self._waits
            for caller in list(self._known) if self._told else ():
                caller.say(WAITS)

    def failed(self, error: Exception) -> None:
        self._end()

    def _tick_soon(self) -> None:
        if self._pid == self._runtime.getpid():  # otherwise the thread is the parent's
            reactor(self._runtime).remind(self, self._runtime.monotonic())

    def _end(self) -> None:
        for caller in list(itertools.chain(self._strangers, self._known)):
            caller.hang_up()
        self._close_port()
        self._ended.set()

    def _close_port(self) -> None:
        if self.port:
            self.port = 0
            reactor(self._runtime).remove(self)
            self._socket.close()


class ProbePort:
    """This node's own port, another after a move. By one thread at a time; ``note_outage`` and ``close`` by any."""

    def __init__(self, local_addr: str | None, runtime: Runtime) -> None:
        """``local_addr``: the address that was given for this node."""
        self._local_addr, self._runtime = local_addr, runtime
        self._listener: ProbeServer | None = None

    def listen(self, name: str, address: str, public: str) -> int:
        """Open it unless it is open: there others see if ``name`` lives. 0 if there is none, and they have to wait."""
        if self._listener is None or not self._listener.port:
            self.close()
            self._listener = None
            own = address if self._local_addr and is_loopback_address(address) else public
            try:
                self._listener = ProbeServer(name, own, self._runtime)
            except (errors.AddressInUse, OSError) as error:
                logger.debug("other nodes cannot see whether this one lives: %s", error)
                return 0
        return self._listener.port

    def note_outage(self, lasts: bool) -> None:
        """The service does not do what this node needs, or does again: whoever watches this node needs it, too."""
        listener = self._listener
        if listener is not None:
            listener.note_outage(lasts)

    def part(self) -> bool:
        """Tell whoever watches this node that nothing seen here counts any more. False if it was not open.

        Raises ``TimeoutError`` if they cannot be told now.
        """
        if self._listener is None:
            return False
        if not self._listener.part(_PART_S):
            raise TimeoutError("this node's own port could not be closed in time")
        self._listener = None
        return True

    def close(self) -> None:
        """Close it, and tell whoever is connected to it. May be repeated."""
        if self._listener is not None:
            self._listener.close()


class _Caller(Handler):
    """A connection that was accepted."""

    def __init__(self, listener: ProbeServer, connection: socket.socket, wanted: bytes, runtime: Runtime) -> None:
        self._listener, self.socket, self._wanted = listener, connection, wanted
        self._runtime = runtime
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
                self.socket.send(self._listener.greeted(self))  # the first bytes that are sent, so there is room
                self._answered = True
            except OSError:  # it has ended in the meantime
                self.hang_up()

    def tick(self, now: float) -> None:
        if not self._answered:
            self.hang_up()

    def failed(self, error: Exception) -> None:
        self.hang_up()

    def say(self, word: bytes) -> None:
        """Tell it something. On the reactor's thread."""
        with contextlib.suppress(OSError):  # it takes nothing, or has ended, and will be told then
            self.socket.send(word)

    def hang_up(self) -> None:
        """End it, with a last word if the caller was answered. On the reactor's thread; may be repeated."""
        if self._over:
            return
        self._over = True
        self._listener.left(self)
        with contextlib.suppress(OSError):
            if self._answered:
                self.socket.send(BYE)
        reactor(self._runtime).remove(self)
        self.socket.close()
