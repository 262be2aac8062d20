"""The seam: time, randomness, threads, sockets and identity of one process, as the engine takes them.

What owns a thread, a clock or a socket gets a ``Runtime`` by its constructor and passes it on; what only decides gets
``now``. ``SYSTEM`` is this process: its attributes are the standard library's own. A simulation has another one for
each of its processes, so that a whole job of many agents runs in one real process, in simulated time, from a seed
(``tests/simulation``).

What exists once in a process (a reactor, a loop, what has been asked for before) is kept in its runtime, by ``single``,
and not in a module: N agents in one process have N of it.

The engine imports none of the modules below: exceptions and constants that it needs of them are names of this module,
and types are imported for the type checker alone.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import select
import signal as signals
import socket as sockets
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import Empty as Empty
from select import POLLERR as POLLERR
from select import POLLHUP as POLLHUP
from select import POLLIN as POLLIN
from select import POLLOUT as POLLOUT
from signal import ITIMER_REAL as ITIMER_REAL
from signal import SIG_DFL as SIG_DFL
from signal import SIG_IGN as SIG_IGN
from signal import Signals as Signals
from threading import TIMEOUT_MAX as TIMEOUT_MAX
from typing import Any, TypeVar, cast

from rdzv_plugins import clock
from rdzv_plugins.system.processes import read_stat

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

AF_UNIX = sockets.AF_UNIX
AF_INET, AF_INET6, SOCK_STREAM, SOCK_DGRAM = sockets.AF_INET, sockets.AF_INET6, sockets.SOCK_STREAM, sockets.SOCK_DGRAM
SOL_SOCKET, SO_REUSEADDR, SO_KEEPALIVE = sockets.SOL_SOCKET, sockets.SO_REUSEADDR, sockets.SO_KEEPALIVE
IPPROTO_TCP, TCP_NODELAY = sockets.IPPROTO_TCP, sockets.TCP_NODELAY
IPPROTO_IPV6, IPV6_V6ONLY = sockets.IPPROTO_IPV6, sockets.IPV6_V6ONLY
AI_NUMERICHOST, AI_NUMERICSERV = sockets.AI_NUMERICHOST, sockets.AI_NUMERICSERV
SO_ERROR = sockets.SO_ERROR
MSG_PEEK, SHUT_RDWR = sockets.MSG_PEEK, sockets.SHUT_RDWR
MSG_NOSIGNAL = int(getattr(sockets, "MSG_NOSIGNAL", 0))
gaierror = sockets.gaierror
EPOLLIN, EPOLLOUT = int(getattr(select, "EPOLLIN", 0)), int(getattr(select, "EPOLLOUT", 0))
"""Of Linux, as is ``epoll``."""
POLLRDHUP, SOCK_NONBLOCK = int(getattr(select, "POLLRDHUP", 0)), int(getattr(sockets, "SOCK_NONBLOCK", 0))
TCP_KEEPIDLE, TCP_KEEPINTVL = int(getattr(sockets, "TCP_KEEPIDLE", 0)), int(getattr(sockets, "TCP_KEEPINTVL", 0))
TCP_KEEPCNT, TCP_USER_TIMEOUT = int(getattr(sockets, "TCP_KEEPCNT", 0)), int(getattr(sockets, "TCP_USER_TIMEOUT", 0))


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _machine_id() -> str:
    """An id shared by all processes of one machine (a container with its own host name), and by no others."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:  # not on Linux
        boot = ""
    return f"{boot} {sockets.gethostname()}"


def _pid_space() -> str:
    """Shared by all processes that see each other's pids, and by no others; empty if unknown."""
    try:
        return f"{_BOOT_ID.read_text().strip()} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _has_ended(pid: int) -> bool:
    """Whether a process that this one can see has ended, even if nobody has waited for it. False if unknown."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # somebody else's
        return False
    stat = read_stat(pid)
    return stat is not None and not stat.lives


class OwnThread(threading.Thread):
    """A daemon thread. An error that ends it is logged, and ``on_error`` is told, on the thread, if others rely on it.

    Without ``on_error`` nobody waits for what it does, or ``target`` tells them by itself.
    """

    def __init__(
        self,
        target: Callable[..., object],
        name: str,
        args: Iterable[Any] = (),
        on_error: Callable[[Exception], object] | None = None,
    ) -> None:
        super().__init__(target=target, name=name, args=args, daemon=True)
        self._on_error = on_error

    def run(self) -> None:
        """Call the target. Called by the thread itself."""
        try:
            super().run()
        except Exception as error:
            logger.exception("the thread %s of this process has ended by an error; please report it", self.name)
            if self._on_error is not None:
                self._on_error(error)


class Runtime:
    """What one process has. The names are those of the standard library. Thread-safe as far as that is.

    A simulated one is a subclass with attributes of its own.
    """

    # time, in seconds
    monotonic = staticmethod(time.monotonic)
    now = staticmethod(clock.now)
    """Like ``monotonic``, but counts on while the machine sleeps."""
    now_ns = staticmethod(clock.now_ns)
    """The same in nanoseconds."""
    wall = staticmethod(time.time)
    """Since 1970. Jumps, and differs between machines: for people only."""
    sleep = staticmethod(time.sleep)

    # threads
    Thread = OwnThread
    Timer = threading.Timer
    Lock = staticmethod(threading.Lock)
    RLock = staticmethod(threading.RLock)
    Condition = threading.Condition
    Event = threading.Event
    SimpleQueue = queue.SimpleQueue
    Queue = queue.Queue
    get_ident = staticmethod(threading.get_ident)

    # identity
    uuid4 = staticmethod(uuid.uuid4)
    gethostname = staticmethod(sockets.gethostname)
    getpid = staticmethod(os.getpid)
    urandom = staticmethod(os.urandom)

    machine_id = staticmethod(_machine_id)
    pid_space = staticmethod(_pid_space)

    # sockets and descriptors
    socket = sockets.socket
    socketpair = staticmethod(sockets.socketpair)
    getaddrinfo = staticmethod(sockets.getaddrinfo)
    poll = staticmethod(select.poll)
    close = staticmethod(os.close)
    if hasattr(select, "epoll"):
        epoll = select.epoll
    if hasattr(os, "eventfd"):
        eventfd = staticmethod(os.eventfd)
        eventfd_read = staticmethod(os.eventfd_read)
        eventfd_write = staticmethod(os.eventfd_write)

    # processes
    kill = staticmethod(os.kill)
    killpg = staticmethod(os.killpg)
    waitpid = staticmethod(os.waitpid)
    waitid = staticmethod(os.waitid)
    getsid = staticmethod(os.getsid)
    has_ended = staticmethod(_has_ended)

    # signals, for the main thread
    signal = staticmethod(signals.signal)
    getsignal = staticmethod(signals.getsignal)
    setitimer = staticmethod(signals.setitimer)

    def __init__(self) -> None:
        self.random = random.Random()
        """Of our own: the user's seeded one is not disturbed."""
        self._singles: dict[object, Any] = {}
        self._making = self.RLock()

    def single(self, make: Callable[[Runtime], _T]) -> _T:
        """The one ``make(self)`` of this process, made when it is first asked for."""
        with self._making:
            if make not in self._singles:
                self._singles[make] = make(self)
            return cast(_T, self._singles[make])

    def forget(self, make: Callable[[Runtime], _T]) -> _T | None:
        """The one that was, if any; the next ``single`` makes another: this is a forked child, or it has ended."""
        return cast("_T | None", self._singles.pop(make, None))

    def forked(self) -> None:
        """This is a forked child: a thread of the parent may have held the lock, and numbers are to differ from its."""
        self._making = self.RLock()
        self.random.seed()


SYSTEM = Runtime()
"""This process."""

if hasattr(os, "register_at_fork"):  # before those of the modules that import this one: they may ask for what is single
    os.register_at_fork(after_in_child=SYSTEM.forked)
