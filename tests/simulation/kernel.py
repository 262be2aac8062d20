"""What a kernel offers to the processes of the simulated world: sockets, event descriptors, epoll.

The names and errors are those of ``socket``, ``select`` and ``os``, as far as our own code uses them. A kernel takes
connections and bytes for a process that stands still; only the process itself learns of them later.
"""

from __future__ import annotations

import errno
import itertools
import select
import socket as real
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from simulation.network import End, Network
from simulation.scheduler import Process, Thread

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ROOM = 256 << 10
"""Bytes that a socket takes for a reader that does not read."""
_MESSAGES = 200
"""As many wait for a reader of ``Packets``."""


class Descriptor:
    """Something that epoll can wait for."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._number = next(kernel.numbers)
        self.pollers: list[Epoll | Poll] = []
        self._waiting: list[Thread] = []
        kernel.open[self._number] = self

    def fileno(self) -> int:
        return self._number

    def events(self) -> int:
        """What epoll would say of it."""
        raise NotImplementedError

    def changed(self) -> None:
        """Wake whoever waits for it."""
        if self._waiting:
            self._kernel.network.scheduler.wake_all(self._waiting)
        for poller in self.pollers:
            poller.wake()

    def release(self) -> None:
        if self._number >= 0:
            del self._kernel.open[self._number]
            for poller in list(self.pollers):
                poller.unregister(self._number, self)
            self._number = -1

    def wait(self, ready: Callable[[], Any], timeout: float | None) -> None:
        """Wait until that is so. Raises ``TimeoutError``; with a timeout of 0, ``BlockingIOError``."""
        scheduler = self._kernel.network.scheduler
        scheduler.pause()
        if not scheduler.wait_until(self._waiting, ready, timeout):
            if timeout == 0:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            raise TimeoutError("timed out")


class EventFd(Descriptor):
    """``os.eventfd``."""

    value = 0

    def events(self) -> int:
        return select.EPOLLIN if self.value else 0


class Socket(Descriptor):
    """``socket.socket``: a stream of bytes over TCP."""

    family = real.AF_INET

    def __init__(self, kernel: Kernel, process: Process) -> None:
        super().__init__(kernel)
        self._process = process
        self._timeout: float | None = None
        self._end: End | None = None
        self._local: tuple[str, int] = ("0.0.0.0", 0)
        self._remote: tuple[str, int] | None = None
        self._error = 0
        self._connecting = False
        self._arrived: deque[Socket] | None = None  # a listening one's connections
        self._bytes = bytearray()
        self._finished = self._shut = False
        self._lost: OSError | None = None
        """Why it has ended, if that was not in an orderly way."""
        self._keeps_alive = False
        self._asks = {real.TCP_KEEPIDLE: 7200, real.TCP_KEEPINTVL: 75, real.TCP_KEEPCNT: 9}

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def setblocking(self, flag: bool) -> None:
        self._timeout = None if flag else 0

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = timeout

    def gettimeout(self) -> float | None:
        return self._timeout

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        """Nothing depends on the others."""
        if (level, option) == (real.SOL_SOCKET, real.SO_KEEPALIVE):
            self._keeps_alive = bool(value)
        elif level == real.IPPROTO_TCP and option in self._asks:
            self._asks[option] = value
        elif (level, option) == (real.IPPROTO_TCP, real.TCP_USER_TIMEOUT) and self._end is not None:
            self._end.resends = value / 1000
        if self._keeps_alive and self._end is not None:
            idle, interval, count = self._asks.values()
            self._end.keep_alive = float(idle + interval * count)

    def getsockopt(self, level: int, option: int) -> int:
        """SO_ERROR alone."""
        error, self._error = self._error, 0
        return error

    def getsockname(self) -> tuple[str, int]:
        return self._local

    def getpeername(self) -> tuple[str, int]:
        if self._remote is None or self._end is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return self._remote

    # Connections

    def bind(self, address: tuple[str, int]) -> None:
        """Raises ``OSError`` if the port is taken, or if the address is another host's."""
        network = self._kernel.network
        if address[0] not in ("", "0.0.0.0", "::", *LOOPBACK, self._process.host):
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        port = address[1] or network.free_port()
        network.listen(self._process, port, self._accepted, in_kernel=True)
        self._local = (address[0] or "0.0.0.0", port)

    def listen(self, backlog: int = 0) -> None:
        self._arrived = deque()

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        arrived = self._arrived
        if arrived is None:
            raise OSError(errno.EINVAL, "Invalid argument")
        self.wait(lambda: arrived, self._timeout)
        self._kernel.spare_one()
        connection = arrived.popleft()
        assert connection._remote is not None
        return connection, connection._remote

    def hand_over(self, accept: Callable[[End], object]) -> None:
        """Have its process take the connections, those that have come and those that will, as ``End``s."""
        network, arrived = self._kernel.network, self._arrived or ()
        network.stop_listening(self._process, self._local[1])
        network.listen(self._process, self._local[1], accept)
        self.release()
        for each in arrived:
            end, came = each._connected(), bytes(each._bytes)
            each.release()
            end.in_kernel, end.held = False, end.unread
            accept(end)
            if came:
                end.on_message(came)
            if end.ended:
                end.on_end("closed")

    def detach(self) -> int:
        """It stays open."""
        return self._number

    def connect(self, address: tuple[str, int]) -> None:
        timeout, self._timeout = self._timeout, 0
        try:
            self.connect_ex(address)
        finally:
            self._timeout = timeout
        self.wait(lambda: not self._connecting, timeout)
        if self._error:
            raise OSError(self.getsockopt(0, 0), "connection failed")

    def connect_ex(self, address: tuple[str, int]) -> int:
        host = self._process.host if address[0] in LOOPBACK else address[0]
        network = self._kernel.network
        self._end = End(network, self._process, network.free_port(), in_kernel=True)
        self._local = (address[0] if address[0] in LOOPBACK else self._process.host, self._end.port)
        self._remote = (address[0], address[1])
        self._connecting = True
        self._use(self._end)
        network.dial(self._end, host, address[1], self._answered)
        return errno.EINPROGRESS

    def _answered(self, is_open: bool) -> None:
        self._connecting = False
        if not is_open and self._end is not None:
            self._error, self._end.ended = errno.ECONNREFUSED, True
        self.changed()

    def _accepted(self, end: End) -> None:
        """Its kernel has a connection for whoever listens here."""
        if self._arrived is None:
            end.end("reset")
            return
        connection = Socket(self._kernel, self._process)
        connection._end = end
        here = self._process.host if self._local[0] in ("0.0.0.0", "::") else self._local[0]
        connection._local, connection._remote = (here, self._local[1]), (end.peer.process.host, end.peer.port)
        connection._use(end)
        self._arrived.append(connection)
        self.changed()

    def _use(self, end: End) -> None:
        end.on_message, end.on_end, end.held = self._came, self._ended, self._bytes

    # Bytes

    def recv(self, most: int, flags: int = 0) -> bytes:
        self._connected()
        self.wait(lambda: self._bytes or self._finished or self._lost, self._timeout)
        if self._lost is not None:
            raise self._lost
        data = bytes(self._bytes[:most])
        if not flags & real.MSG_PEEK:
            del self._bytes[:most]
        return data

    def send(self, data: bytes, flags: int = 0) -> int:
        end = self._connected()
        if self._shut or end.ended:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        end.send(bytes(data))
        return len(data)

    def sendall(self, data: bytes, flags: int = 0) -> None:
        self.send(data)

    def shutdown(self, how: int) -> None:
        self._connected()
        self._shut = self._finished = True
        self.changed()

    def close(self) -> None:
        if self._number < 0:
            return
        network = self._kernel.network
        network.scheduler.check()
        if self._arrived is not None:
            network.stop_listening(self._process, self._local[1])
            for connection in self._arrived:
                connection.close()
        if self._end is not None and not self._end.ended:
            if self._connecting:
                network.give_up(self._end)
            else:
                self._end.end("reset" if self._bytes else "closed")
        self.release()

    def events(self) -> int:
        events = 0
        if self._arrived or self._bytes or self._finished or self._lost:
            events |= select.EPOLLIN
        if self._end is not None and not self._connecting:
            events |= select.EPOLLOUT
        if self._error or self._lost:
            events |= select.EPOLLERR | select.EPOLLIN
        if self._finished and not self._lost:
            events |= select.EPOLLRDHUP
        return events

    def _came(self, data: Any) -> None:
        self._bytes += data
        self.changed()

    def _ended(self, how: str) -> None:
        if how == "reset":
            self._lost = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        elif how == "silent":
            self._lost = TimeoutError(errno.ETIMEDOUT, "Connection timed out")
        self._finished = True
        self.changed()

    def _connected(self) -> End:
        if self._end is None or self._connecting:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return self._end


class Packets(Descriptor):
    """One end of a ``socket.socketpair`` that keeps messages apart. Open while any process holds it."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.peer = self
        self._messages: deque[bytes] = deque()
        self._holders: list[Process] = []

    def held_by(self, process: Process) -> None:
        """The process has it, too: it may have been forked."""
        self._holders.append(process)
        process.on_end.append(lambda: self._let_go(process))

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def send(self, message: bytes) -> int:
        self._kernel.network.scheduler.check()
        if self.peer.fileno() < 0:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        if len(self.peer._messages) >= _MESSAGES:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        self.peer._messages.append(message)
        self.peer.changed()
        return len(message)

    def recvmsg(self, most: int, *_: int) -> tuple[bytes, list[Any], int, None]:
        self._kernel.network.scheduler.check()
        if not self._messages and self.peer.fileno() >= 0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        message = self._messages.popleft() if self._messages else b""
        self.peer.changed()
        return message, [], 0, None

    def close(self) -> None:
        self._kernel.network.scheduler.check()
        self._let_go(self._kernel.process)

    def events(self) -> int:
        peer = self.peer
        gone = peer._number < 0
        readable = select.POLLIN if self._messages or gone else 0
        return readable | (select.POLLOUT if gone or len(peer._messages) < _MESSAGES else 0)

    def _let_go(self, process: Process) -> None:
        if process in self._holders:
            self._holders.remove(process)
            if not self._holders:
                self.release()
                self.peer.changed()


class Poller:
    """What waits for descriptors, each for some events. Errors and hang-ups are always told."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._watched: dict[int, tuple[Descriptor, int]] = {}
        self._polling: list[Thread] = []

    def wake(self) -> None:
        self._kernel.network.scheduler.wake_all(self._polling)

    def _ready(self) -> list[tuple[int, int]]:
        always = select.EPOLLERR | select.EPOLLHUP
        found = ((fd, each.events() & (mask | always)) for fd, (each, mask) in self._watched.items())
        return [(fd, events) for fd, events in found if events]


class Poll(Poller):
    """``select.poll``."""

    def register(self, fd: int | Descriptor, mask: int = select.POLLIN | select.POLLOUT) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        self._watched[number] = self._kernel.open[number], mask

    def poll(self, milliseconds: float | None = None) -> Sequence[tuple[int, int]]:
        scheduler = self._kernel.network.scheduler
        scheduler.pause()
        if ready := self._ready():
            return ready
        for watched, _ in self._watched.values():
            watched.pollers.append(self)
        try:
            limit = None if milliseconds is None or milliseconds < 0 else milliseconds / 1000
            return scheduler.wait_until(self._polling, self._ready, limit)  # type: ignore[no-any-return]
        finally:
            for watched, _ in self._watched.values():
                if self in watched.pollers:
                    watched.pollers.remove(self)

    def unregister(self, fd: int, watched: Descriptor | None = None) -> None:
        """What it waits for has been closed: the real one would not say so, either."""
        if watched is not None and self in watched.pollers:
            watched.pollers.remove(self)


class Epoll(Poller, Descriptor):
    """``select.epoll``."""

    def __init__(self, kernel: Kernel) -> None:
        Descriptor.__init__(self, kernel)
        Poller.__init__(self, kernel)

    def register(self, fd: int, mask: int) -> None:
        watched = self._kernel.open[fd]
        self._watched[fd] = watched, mask
        watched.pollers.append(self)
        self.wake()

    def modify(self, fd: int, mask: int) -> None:
        self._watched[fd] = self._watched[fd][0], mask
        self.wake()

    def unregister(self, fd: int, watched: Descriptor | None = None) -> None:
        if watched is None:
            watched = self._kernel.open[fd]
        del self._watched[fd]
        watched.pollers.remove(self)

    def poll(self, timeout: float | None = None, most: int = -1) -> Sequence[tuple[int, int]]:
        scheduler = self._kernel.network.scheduler
        scheduler.pause()
        ready: Sequence[tuple[int, int]] = scheduler.wait_until(self._polling, self._ready, timeout)
        return ready if most < 0 else ready[:most]

    def close(self) -> None:
        self.release()

    def events(self) -> int:
        return select.EPOLLIN if self._ready() else 0


class Kernel:
    """The descriptors of all processes: each number is given out once, so that a mistaken use is seen."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.numbers = itertools.count(1000)
        self.open: dict[int, Descriptor] = {}
        self.starved: set[Process] = set()
        """Processes that get no further descriptor."""

    @property
    def process(self) -> Process:
        """That of the running thread."""
        return self.network.scheduler.running.process

    def spare_one(self) -> None:
        """Raise ``OSError`` if the running thread's process has no descriptor to spare."""
        if self.starved and self.process in self.starved:
            raise OSError(errno.EMFILE, "Too many open files")

    def socket(self, family: int = real.AF_INET, kind: int = real.SOCK_STREAM, protocol: int = 0) -> Socket:
        self.spare_one()
        made = Socket(self, self.process)
        made.setblocking(not kind & real.SOCK_NONBLOCK)
        return made

    def getaddrinfo(self, host: str | bytes, port: int, *_: object, **__: object) -> Sequence[Any]:
        """Every name is an address: hosts are called by it."""
        name = host.decode() if isinstance(host, bytes) else host
        return [(real.AF_INET, real.SOCK_STREAM, 0, "", (name, port))]

    def socketpair(self, family: int = real.AF_UNIX, kind: int = real.SOCK_SEQPACKET) -> tuple[Packets, Packets]:
        assert kind == real.SOCK_SEQPACKET
        self.spare_one()
        pair = Packets(self), Packets(self)
        pair[0].peer, pair[1].peer = pair[1], pair[0]
        for each in pair:
            each.held_by(self.process)
        return pair

    def poll(self) -> Poll:
        return Poll(self)

    def epoll(self) -> Epoll:
        self.spare_one()
        return Epoll(self)

    def eventfd(self, value: int, flags: int = 0) -> int:
        self.spare_one()
        made = EventFd(self)
        made.value = value
        return made.fileno()

    def eventfd_write(self, fd: int, value: int) -> None:
        found = self.open[fd]
        assert isinstance(found, EventFd)
        found.value += value
        found.changed()

    def eventfd_read(self, fd: int) -> int:
        found = self.open[fd]
        assert isinstance(found, EventFd)
        if not found.value:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        value, found.value = found.value, 0
        return value

    def close(self, fd: int) -> None:
        self.open[fd].release()
