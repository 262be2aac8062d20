"""One thread for all connections of this process: what they receive, and what is due.

Sessions have a thread to themselves so that a node whose main thread is busy, or waits for its workers, keeps its
session and hears of changes. There is one thread, whatever the number of sessions: it starts with the first and stays,
asleep while nothing happens. It calls back by ``StoppableCall``.

A forked child has the descriptors of its parent, but not the thread. In the child, every connection is closed without a
word to the other side (the parent goes on using it), and the reactor is forgotten: the child's next session starts
another.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from rdzv_plugins.runtime import EPOLLIN, EPOLLOUT, SYSTEM, Runtime

if TYPE_CHECKING:
    import socket

logger = logging.getLogger(__name__)

_EVENTS = 256  # per look at the descriptors: latecomers wait for this many at most


class Timed(Protocol):
    """What is called at its time. An exception from a method that the reactor's thread calls ends it."""

    def tick(self, now: float) -> float | None:
        """The time that it asked for has come. Returns the next one (``time.monotonic``), or None for no more."""

    def failed(self, error: Exception) -> None:
        """One of its methods has raised ``error``."""


class Handler(Timed, Protocol):
    """Something with a socket."""

    def fileno(self) -> int: ...

    def readable(self) -> None:
        """There are bytes, or the connection has ended."""

    def writable(self) -> None:
        """There is room to send more. Called after ``watch_room``; ``readable`` may just have ended the handler."""
        return

    def forget(self) -> None:
        """This is a forked child: the socket is closed, and threads that held locks no longer exist."""
        return


class Reactor:
    """The thread and its descriptors. ``add``, ``remind`` and ``watch_room`` may be called from any thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._epoll = runtime.epoll()
        self._wake = runtime.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, EPOLLIN)
        self._handlers: dict[int, Handler] = {}
        self._lock = runtime.Lock()  # protects the timers
        self._timers: list[tuple[float, int, Timed]] = []
        self._order = itertools.count()  # a tie-breaker: handlers cannot be compared
        self._wakes_at = math.inf
        self._thread = runtime.Thread(target=self._run, name="rdzv-sessions", on_error=self._broken)
        self._thread.start()

    def is_current(self) -> bool:
        """True on the reactor's own thread, where waiting for the reactor would never end."""
        return self._runtime.get_ident() == self._thread.ident

    def add(self, handler: Handler, due: float) -> None:
        """Serve ``handler`` from now on, and call its ``tick`` at ``due`` (``time.monotonic``).

        Raises ``OSError``, and does nothing, if the system allows no more.
        """
        fd = handler.fileno()
        self._handlers[fd] = handler
        try:
            self._epoll.register(fd, EPOLLIN)
        except BaseException:
            del self._handlers[fd]
            raise
        self.remind(handler, due)

    def remind(self, handler: Timed, due: float) -> None:
        """Call its ``tick`` at ``due`` as well, even if it is no longer served by then."""
        with self._lock:
            heapq.heappush(self._timers, (due, next(self._order), handler))
            sooner = due < self._wakes_at
        if sooner:
            self._runtime.eventfd_write(self._wake, 1)

    def watch_room(self, handler: Handler, wanted: bool) -> None:
        """Call ``writable`` from now on, or stop calling it.

        The handler ensures that its socket is not closed meanwhile.
        """
        self._epoll.modify(handler.fileno(), EPOLLIN | (EPOLLOUT if wanted else 0))

    def remove(self, handler: Handler) -> None:
        """Stop serving it. On the reactor's thread, before its socket is closed: the number may be used again."""
        self._epoll.unregister(handler.fileno())
        del self._handlers[handler.fileno()]

    def _run(self) -> None:
        while True:
            self._serve(self._epoll.poll(self._pause(), _EVENTS))
            self._tick()

    def _serve(self, ready: list[tuple[int, int]]) -> None:
        """Call those that are ready. Were it a part of ``_run``, that would hold the last one while it waits."""
        for fd, mask in ready:
            handler = self._handlers.get(fd)
            if handler is None:
                if fd == self._wake:
                    self._runtime.eventfd_read(fd)
                continue
            try:
                if mask & ~EPOLLOUT:
                    handler.readable()
                if mask & EPOLLOUT:
                    handler.writable()
            except Exception as error:
                _fail(handler, error)

    def _broken(self, error: Exception) -> None:
        """Nothing is served any more: every connection ends, and the next one begins with another thread."""
        self._fail_all(error)
        self._runtime.forget(Reactor)
        self._fail_all(error)  # those that have come meanwhile

    def _fail_all(self, error: Exception) -> None:
        for handler in list(self._handlers.values()):
            _fail(handler, error)

    def _pause(self) -> float | None:
        with self._lock:
            self._wakes_at = self._timers[0][0] if self._timers else math.inf
        return None if self._wakes_at == math.inf else max(0.0, self._wakes_at - self._runtime.monotonic())

    def _tick(self) -> None:
        while True:
            now = self._runtime.monotonic()
            with self._lock:
                if not self._timers or self._timers[0][0] > now:
                    return
                _, order, handler = heapq.heappop(self._timers)
            try:
                due = handler.tick(now)
            except Exception as error:
                _fail(handler, error)
                continue
            if due is not None:
                with self._lock:
                    heapq.heappush(self._timers, (due, order, handler))

    def abandon(self) -> None:
        """Let go in a forked child: the parent's epoll is shared, so nothing may be removed from it here."""
        self._runtime.close(self._wake)
        self._epoll.close()
        for handler in list(self._handlers.values()):
            handler.forget()


def _fail(handler: Timed, error: Exception) -> None:
    logger.error("a connection ends, because serving it failed", exc_info=error)
    try:
        handler.failed(error)
    except Exception:
        logger.exception("a connection could not be ended")


def reactor(runtime: Runtime = SYSTEM) -> Reactor:
    """The reactor of this process, started if necessary."""
    return runtime.single(Reactor)


def _closed_in_children(runtime: Runtime) -> weakref.WeakSet[socket.socket]:
    return weakref.WeakSet()


def close_in_children(connection: socket.socket, runtime: Runtime = SYSTEM) -> None:
    """Close ``connection`` in forked children.

    A fork that kept it open would keep the session of a dead process alive.
    """
    runtime.single(_closed_in_children).add(connection)


def _after_fork() -> None:
    closed, abandoned = SYSTEM.forget(_closed_in_children), SYSTEM.forget(Reactor)
    for connection in list(closed or ()):
        connection.close()
    if abandoned is not None:
        abandoned.abandon()


if hasattr(os, "register_at_fork"):  # without fork there is no need
    os.register_at_fork(after_in_child=_after_fork)


class StoppableCall:
    """A call-back that neither begins nor goes on once ``stop`` has returned elsewhere."""

    def __init__(self, function: Callable[[Any], object], runtime: Runtime = SYSTEM) -> None:
        self._function, self._get_ident = function, runtime.get_ident
        self._running = runtime.Lock()
        self._thread: int | None = None
        self._stopped = False

    def __call__(self, argument: object) -> None:
        with self._running:
            if self._stopped:
                return
            self._thread = self._get_ident()
            try:
                self._function(argument)
            finally:
                self._thread = None

    def stop(self) -> None:
        """Let no further call begin, and wait for a running one.

        If called from within it, that one goes on as the last.
        """
        self._stopped = True
        if self._thread != self._get_ident():
            with self._running:  # wait for the one that runs
                pass


class CancellableWatch:
    """A ``Watch``. ``cancel`` waits for a running call, so hold no lock that this takes."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.cancel = cancel
