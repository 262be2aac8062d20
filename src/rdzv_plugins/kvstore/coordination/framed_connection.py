"""A connection in our own framing that many threads use: requests with their replies, pushes, signs of life.

The reactor's thread receives. The asking thread sends by itself, without ever blocking: what the kernel does not take
at once waits here. Only the reactor closes the socket, so that no thread meets its number in other hands.

``Lease`` is the life of a session as its node knows it, whatever the service. Only the service knows whether a session
lives: while it does not answer, this node does not know, and goes on as long as the user allows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.kvstore.coordination.reactor import close_in_children, reactor
from rdzv_plugins.kvstore.native.framing import HEAD, LENGTH, frame
from rdzv_plugins.runtime import IPPROTO_TCP, MSG_NOSIGNAL, SHUT_RDWR, SYSTEM, TCP_NODELAY, TIMEOUT_MAX, Runtime

if TYPE_CHECKING:
    import socket

logger = logging.getLogger(__name__)

_CHUNK = 65536
_KEEP_ALIVES = 3  # within the time to live: two may be late
_MOST_NUMBER = 2**32 - 1
_REMEDY = "See the output of the process that serves it, and the network on the way there."


class Lease:
    """A session with ``service``, in words, that lives for ``ttl`` seconds after each sign of life.

    ``outage``: seconds of silence to put up with, at least ``ttl``. ``opened``: when the session was requested, by
    ``rdzv_plugins.clock.now``. One thread changes it; any may read it.
    """

    def __init__(self, service: str, ttl: float, outage: float, opened: float) -> None:
        self.service, self.ttl, self.patience = service, ttl, max(outage, ttl)
        self.renewed = opened
        """When the newest request that was answered had been sent."""

    @property
    def known_until(self) -> float:
        """The time until which the session surely lives: the service may have counted from ``renewed``."""
        return self.renewed + self.ttl

    def renew(self, sent: float) -> None:
        """What was sent then has been answered."""
        self.renewed = max(self.renewed, sent)

    def has_stood_still(self, late: float) -> bool:
        """Whether a silence that is noticed so late is not the service's: this process was stopped, or was too busy."""
        return late > self.ttl / 2

    def warn_silent(self, silence: float, why: str = "") -> None:
        """Tell the user that the service has been silent for so many seconds."""
        logger.warning(
            "%s has not answered for %.0f s%s; this node goes on without it for another %.0f s at most",
            self.service,
            silence,
            f" ({why})" if why else "",
            max(0.0, self.patience - silence),
        )

    def warn_back(self, silence: float) -> None:
        """Tell the user that the service answers again."""
        logger.warning("%s answers again, after %.0f s", self.service, silence)

    def lost(self, text: str, *, remedy: str = "", silent: bool = True, since: float | None = None) -> ConnectionLost:
        """The error of the session's end. ``silent``: the service was, ``since`` then if that is known."""
        error = ConnectionLost(text, remedy=remedy)
        error.silent, error.silent_since = silent, since
        return error


class _Waiter:
    """A request that waits for its reply; ``status`` stays None when there will be none."""

    __slots__ = ("answered", "payload", "status")

    def __init__(self, runtime: Runtime) -> None:
        self.answered = runtime.Lock()  # an Event costs four times as much
        self.answered.acquire()
        self.status: int | None = None
        self.payload = b""


class FramedConnection:
    """A greeted connection, from ``start`` until it breaks, falls silent or is closed. Thread-safe.

    ``keep_alive`` is the operation sent when nothing else was sent for a third of the ``ttl`` of the ``lease``, which
    every answer renews. When nothing was heard for ``ttl`` seconds, the connection is silent, and ``on_silent`` is
    called; when nothing was heard for longer than the lease puts up with, it is lost. ``on_push(status, payload)`` gets
    the frames that answer no request; ``on_end(error)`` is called once, unless a fork has ended the connection. All of
    these are called on the reactor's thread.
    """

    def __init__(
        self,
        connection: socket.socket,
        lease: Lease,
        keep_alive: int,
        on_push: Callable[[int, bytes], None],
        on_end: Callable[[ConnectionLost], None],
        on_silent: Callable[[], object] = lambda: None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        close_in_children(connection, runtime)
        connection.setblocking(False)
        connection.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        self._socket, self._runtime = connection, runtime
        self._peer, self._lease, self._keep_alive = lease.service, lease, keep_alive
        self._on_push, self._on_end, self._on_silent = on_push, on_end, on_silent
        self._reactor = reactor(runtime)
        self._lock = runtime.RLock()  # sending, the waiters, the end; a signal handler may close
        self._waiters: dict[int, _Waiter] = {}
        self._number = 1  # the greeting may have used it
        self._unsent = bytearray()
        self._partial = bytearray()  # of a frame
        self._needed = 0  # bytes until the frame is whole, as far as known
        self._sent_at = self._heard_at = self._runtime.monotonic()
        self._asked: dict[int, float] = {}  # when each request that is still unanswered was sent
        self._why: str | None = None  # it has ended, or is about to
        self._silent = False  # it has ended because nothing was heard
        self._told_silent = False  # since it was heard last
        self._silent_since: float | None = None  # by ``Runtime.now``; noted in time, after the time to live
        self._over = False  # the socket is closed
        self.forked = False

    def start(self) -> None:
        """Begin to receive and to send signs of life."""
        self._reactor.add(self, self._sent_at + self._lease.ttl / _KEEP_ALIVES)

    def request(self, operation: int, payload: bytes, timeout: float) -> tuple[int, bytes]:
        """Status and payload of the reply, waited for at most ``timeout`` seconds.

        Raises ``ConnectionLost``, or ``TimeoutError``, after which the request may still be served.
        """
        if self._reactor.is_current():
            raise RuntimeError("a call-back may not make a request: its answer would come on the thread that waits")
        waiter = _Waiter(self._runtime)
        number = self._begin(operation, payload, waiter)
        try:
            answered = waiter.answered.acquire(timeout=min(max(0.0, timeout), TIMEOUT_MAX))
        finally:  # a signal may end the wait
            self._waiters.pop(number, None)
        if waiter.status is not None:
            return waiter.status, waiter.payload
        if answered:
            raise self.lost()
        raise TimeoutError(f"no answer from {self._peer} within {timeout:g} s")

    def tell(self, operation: int, payload: bytes) -> None:
        """Send a request without waiting for its answer. Does nothing after the end."""
        try:
            self._begin(operation, payload, None)
        except ConnectionLost:
            pass

    def give_up(self, why: str) -> None:
        """End the connection: pending requests fail with ``why``, and ``on_end`` is called.

        May be called more than once.
        """
        self._silent_since = None  # by whoever knows better
        with self._lock:
            self._break(why)

    def lost(self) -> ConnectionLost:
        """Why the connection has ended, as a fresh error: each thread raises its own."""
        why = self._why or "the connection has not ended"
        return self._lease.lost(why, remedy=_REMEDY, silent=self._silent, since=self._silent_since)

    @property
    def is_open(self) -> bool:
        """True until the connection has ended."""
        return self._why is None

    @property
    def silence(self) -> float:
        """For how many seconds nothing was heard."""
        return self._runtime.monotonic() - self._heard_at

    @property
    def is_silent(self) -> bool:
        """True if nothing was heard for the time to live and the connection has not ended."""
        return self._why is None and self.silence >= self._lease.ttl

    def fileno(self) -> int:
        return self._socket.fileno()

    def readable(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(self._broken(error))
            return
        if not data:
            self._end(f"the connection to {self._peer} was closed by the other side")
            return
        self._heard_at = self._runtime.monotonic()
        self._told_silent, self._silent_since = False, None
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed:
                return
            data = bytes(self._partial)
        rest = self._take_frames(data)
        if rest or self._partial:
            self._partial = bytearray(rest)

    def writable(self) -> None:
        with self._lock:
            if self._why is None:
                del self._unsent[: self._send_some(self._unsent)]
                if not self._unsent:
                    self._reactor.watch_room(self, False)

    def tick(self, now: float) -> float | None:
        ttl, patience = self._lease.ttl, self._lease.patience
        if self._why is None and now - self._heard_at >= ttl:
            self.readable()  # what is already there was said in time, if only this process was late
            silence = now - self._heard_at
            if self._silent_since is None and silence >= ttl and not self._lease.has_stood_still(silence - ttl):
                self._silent_since = self._runtime.now() - silence
            if silence >= patience:
                self._silent = True
                self._end(f"{self._peer} has not answered for {patience:g} s")
            elif silence >= ttl and not self._told_silent:
                self._told_silent = True
                self._on_silent()
        if self._why is not None:
            return None
        pause = ttl / _KEEP_ALIVES
        if now - self._sent_at >= pause:
            self.tell(self._keep_alive, b"")
        return min(self._sent_at + pause, self._heard_at + (patience if self._told_silent else ttl))

    def failed(self, error: Exception) -> None:
        self._end(f"the session with {self._peer} was given up after an error of this process: {error!r}")

    def forget(self) -> None:
        self._lock = self._runtime.RLock()
        self._waiters.clear()
        self._why = f"the session with {self._peer} belongs to the process that this one was forked from"
        self._over = self.forked = True

    def _begin(self, operation: int, payload: bytes, waiter: _Waiter | None) -> int:
        with self._lock:
            if self._why is not None:
                raise self.lost()
            self._number = number = self._number % _MOST_NUMBER + 1
            if waiter is not None:
                self._waiters[number] = waiter
            self._asked[number] = self._runtime.now()
            self._send(frame(number, operation, payload))
            return number

    def _send(self, data: bytes) -> None:
        """Send ``data``, or keep what cannot go out yet. The caller holds the lock."""
        self._sent_at = self._runtime.monotonic()
        if self._unsent:
            self._unsent += data
            return
        sent = self._send_some(data)
        if sent < len(data) and self._why is None:
            self._unsent += memoryview(data)[sent:]
            self._reactor.watch_room(self, True)

    def _send_some(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data, MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._break(self._broken(error))
            return 0

    def _broken(self, error: OSError) -> str:
        if isinstance(error, BrokenPipeError):  # sent before it was heard that the other side has gone
            return f"the connection to {self._peer} was closed by the other side"
        if isinstance(error, ConnectionResetError):
            return f"the connection to {self._peer} was reset by the other side"
        return f"the connection to {self._peer} broke: {(error.strerror or str(error)).lower()}"

    def _break(self, why: str) -> None:
        """Shut the connection down; the reactor notices and does the rest. The caller holds the lock."""
        if self._why is None:
            self._why = why
            try:
                self._socket.shutdown(SHUT_RDWR)
            except OSError:
                pass  # already down

    def _end(self, why: str) -> None:
        """Close the connection, and end everything that waits for it. Called on the reactor's thread."""
        with self._lock:
            if self._over:
                return
            self._over = True
            self._why = self._why or why
            self._reactor.remove(self)
            self._socket.close()
            waiters = list(self._waiters.values())
        for waiter in waiters:
            waiter.answered.release()
        self._on_end(self.lost())

    def _take_frames(self, data: bytes) -> bytes:
        """Deliver the complete frames, and return the rest."""
        at = 0
        self._needed = LENGTH.size
        while len(data) - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(data, at)
            if size < HEAD.size:
                raise ValueError(f"{self._peer} sent a frame of {size} bytes")
            end = at + LENGTH.size + size
            if end > len(data):
                self._needed = end - at
                break
            number, status = HEAD.unpack_from(data, at + LENGTH.size)
            payload = data[at + LENGTH.size + HEAD.size : end]
            at = end
            if number:
                self._lease.renew(self._asked.pop(number, -math.inf))
                waiter = self._waiters.pop(number, None)
                if waiter is not None:  # otherwise nobody waits any more
                    waiter.status, waiter.payload = status, payload
                    waiter.answered.release()
            else:
                self._on_push(status, payload)
        return data[at:]
