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

import os
import queue
import random
import select
import signal as signals
import socket as sockets
import threading
import time
import uuid
from collections.abc import Callable
from queue import Empty as Empty
from select import POLLIN as POLLIN
from select import POLLOUT as POLLOUT
from signal import ITIMER_REAL as ITIMER_REAL
from signal import SIG_DFL as SIG_DFL
from signal import SIG_IGN as SIG_IGN
from signal import Signals as Signals
from typing import Any, TypeVar, cast

from rdzv_plugins import clock
from rdzv_plugins.threads import OwnThread

_T = TypeVar("_T")


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

    def forget(self, make: Callable[[Runtime], object]) -> None:
        """The next ``single`` makes another: this is a forked child, or the one that was has ended."""
        self._singles.pop(make, None)


SYSTEM = Runtime()
"""This process."""
