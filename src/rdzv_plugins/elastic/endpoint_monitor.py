"""One of several endpoints, as seen by a node that is a member there or at another: an extra session, kept open."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rdzv_plugins.coordination import Event
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.failover_rules import EndpointStatus, read_init_claim
from rdzv_plugins.elastic.keys import INIT_CLAIM, INITIALIZED, Round, decode
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AccessRefused, ConnectionLost, EndpointUnreachable, RdzvError
from rdzv_plugins.kvstore.coordination.reactor import close_in_children
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination, NativeSession
from rdzv_plugins.kvstore.native.framing import NotNative, OtherVersion
from rdzv_plugins.kvstore.sockets.reach import REFUSED
from rdzv_plugins.kvstore.tcpstore.wire import keep_alive
from rdzv_plugins.runtime import POLLERR, POLLHUP, POLLRDHUP, Runtime

if TYPE_CHECKING:
    import socket

logger = logging.getLogger(__name__)

_PLACE = "place/"

_DIAL_S, _OPEN_S, _ASK_S = 2.0, 3.0, 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_LASTS_S = 1.0  # a session that has lasted this long did not end through a fault of the endpoint
_PROBE_EVERY_S, _PROBES = 60, 60  # the witness outlasts a network that is cut for an hour
_PATIENCE_S = 15.0  # seconds after which it is reported, once, that an endpoint cannot be reached


class EndpointMonitor:
    """Watches an endpoint, on a thread, until ``close``. ``on_change`` is called on any thread, and returns at once."""

    def __init__(
        self,
        endpoint: Endpoint,
        service: NativeCoordination,
        ttl: float,
        on_change: Callable[[], None],
        names: Sequence[str],
        runtime: Runtime,
    ) -> None:
        """``names``: those of all endpoints, as they were given to this node."""
        self._names, self._runtime = tuple(names), runtime
        self.endpoint, self._service, self._ttl, self._on_change = endpoint, service, ttl, on_change
        self.status = EndpointStatus()
        self.error: RdzvError | None = None  # what answers there if it is not an endpoint of this run
        self._lock = self._runtime.Lock()
        self._session: NativeSession | None = None
        self._rechecked: NativeSession | None = None
        self._witness: socket.socket | None = None
        """A connection that was answered there, and on which nothing was sent since. Changed by the thread alone."""
        self._ended = False  # whether the process that answered on it has closed it, in order
        self._again = self._runtime.Event()  # the session has ended, or is in doubt
        self._hurry = self._runtime.Event()  # it is in doubt, or no longer watched: no pause
        self._closed = False
        self._since: float | None = self._runtime.monotonic()
        self._reason = ""
        self._runtime.Thread(target=self._run, name="rdzv-endpoint").start()

    @property
    def wrong(self) -> str:
        """Why nothing is seen there, as it was tried last; empty while it answers."""
        return "" if self.status.answers else self._reason

    def recheck(self) -> None:
        """Look again from the start: nothing that was seen before counts."""
        with self._lock:  # the session is closed only after dialling again: its own end may tell how the server ended
            self._rechecked, self._session, self.status = self._session or self._rechecked, None, EndpointStatus()
        self._hurry.set()
        self._again.set()
        self._on_change()

    def count(self) -> None:
        """Count the members there. One request; waits some seconds at most."""
        session = self._session
        if session is not None:
            with contextlib.suppress(RdzvError, TimeoutError):
                held, _ = session.list(keys.MEMBERS, timeout=_ASK_S)
                self._see(session, members=len(held))

    def remember(self, key: str, value: str) -> str:
        """Have ``key`` remembered there unless it already is; returns the value that is remembered.

        Raises ``ConnectionLost``, ``TimeoutError``, or ``RdzvError`` if the endpoint refuses.
        """
        session = self._session
        if session is None:
            raise ConnectionLost(f"there is no session with {self.endpoint} now")
        _, kept = session.create(key, value.encode(), timeout=_ASK_S)
        self._take(session, [Event(key, kept.value, kept.revision)])
        return kept.value.decode(errors="replace")

    def is_witnessed(self) -> bool:
        """Whether the process that answers now is the one of which ``EndpointStatus.gone`` will tell."""
        with self._lock:
            return self._witness is not None and not _events(self._witness, self._runtime)

    def close(self) -> None:
        """Stop watching. May be repeated."""
        self._closed = True
        self._hurry.set()
        self._again.set()
        with self._lock:
            session, self._session = self._session, None
        for each in (session, self._rechecked):
            if each is not None:
                each.close()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            self._hurry.clear()
            self._again.clear()
            if self._closed:
                self._keep(None)
                return
            try:
                self._open()
                opened, self._since, self.error, self._reason = self._runtime.monotonic(), None, None, ""
                self._again.wait()
                if self._runtime.monotonic() >= opened + _LASTS_S:
                    pause = _FIRST_PAUSE_S
                    continue
            except (EndpointUnreachable, TimeoutError) as error:
                if isinstance(error, AccessRefused):  # it has another token, or one of the two has none
                    self.error = error
                self._missed(refused=isinstance(error, _Refused), reason=str(error))
            except RdzvError as error:  # it serves another run, or serves all of them and this one has no name
                self.error = error
                self._missed(refused=False, reason=str(error))
            except Exception as error:  # the other endpoints are no reason to stop looking at this one
                if repr(error) != self._reason:
                    logger.exception("could not check %s", self.endpoint)
                self._missed(refused=False, reason=repr(error))
            if self._hurry.wait(pause):
                pause = _FIRST_PAUSE_S
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _open(self) -> None:
        foreign = False
        # before its host is asked
        self._ended = self._witness is not None and closed_in_order(self._witness, self._runtime)
        try:
            connection, reason = self._service.look(_DIAL_S)
        except (NotNative, OtherVersion):
            foreign = True
            self._keep(None)
        else:
            self._drop_rechecked()
            if connection is None:
                raise _Refused(reason) if reason == REFUSED else EndpointUnreachable(reason)
            self._keep(connection)
        try:
            session = self._service.open_session(self._ttl, on_lost=self._lost, timeout=_OPEN_S)
        except EndpointUnreachable as error:
            if foreign:  # something else, or a store of another version: the session's own greeting says what it is
                self.error = error
            raise
        try:
            events: list[Event] = []
            for prefix in (keys.ROUND, _PLACE):
                held, _ = session.list(prefix, timeout=_ASK_S)
                events += [Event(kv.key, kv.value, kv.revision) for kv in held]
            with self._lock:
                if self._closed:
                    raise ConnectionLost("it is no longer monitored")
                self._session, self.status = session, EndpointStatus(True, False, True)
            self._take(session, events)
            for prefix in (keys.ROUND, _PLACE):
                session.watch(prefix, lambda news: self._take(session, news), timeout=_ASK_S)
        except BaseException:
            session.close()
            with self._lock:
                self._session, self.status = None, EndpointStatus()
            raise

    def _keep(self, connection: socket.socket | None) -> None:
        """Hold this connection, and send nothing on it: what lies unread makes a kernel reset what it would close."""
        if connection is not None:
            close_in_children(connection, self._runtime)
            keep_alive(connection, _PROBE_EVERY_S, _PROBES)  # nothing on the way is to forget it
        with self._lock:
            before, self._witness = self._witness, connection
        if before is not None:
            before.close()

    def _drop_rechecked(self) -> None:
        with self._lock:
            session, self._rechecked = self._rechecked, None
        if session is not None:
            session.close()

    def _lost(self, error: ConnectionLost | None) -> None:
        with self._lock:
            self._session, self.status = None, EndpointStatus()
        self._again.set()
        self._on_change()

    def _missed(self, *, refused: bool, reason: str) -> None:
        with self._lock:
            self.status = EndpointStatus(False, refused, True, gone=refused and self._ended)
        if reason != self._reason:
            self._reason = reason
            logger.debug("%s: %s", self.endpoint, reason)
        if self._since is None:
            self._since = self._runtime.monotonic()
        elif self._runtime.monotonic() >= self._since + _PATIENCE_S and not self._closed:
            self._since = float("inf")
            logger.warning(
                "cannot reach %s, one of the endpoints of this job: %s; trying again",
                self.endpoint,
                reason,
            )
        self._on_change()

    def _take(self, session: NativeSession, events: Sequence[Event]) -> None:
        for event in events:
            if event.value is None:
                continue
            try:
                if event.key == keys.ROUND:
                    declared = decode(Round, event.value)
                    self._see(session, round=declared.number, works=declared.state == "complete")
                elif event.key == INIT_CLAIM:
                    claimed_at, others = read_init_claim(event.value, self._names)
                    self._see(session, claimed_at=claimed_at, others=others)
                elif event.key == INITIALIZED:
                    self._see(session, initialized=True)
            except (ValueError, TypeError) as error:
                logger.warning("cannot read key %r at %s: %s", event.key, self.endpoint, error)

    def _see(self, session: NativeSession, **seen: object) -> None:
        with self._lock:
            if session is not self._session:
                return
            before, self.status = self.status, replace(self.status, **seen)  # type: ignore[arg-type]
        if self.status != before:
            self._on_change()


def closed_in_order(connection: socket.socket, runtime: Runtime) -> bool:
    """Whether the other side has closed it, and has not reset it. Reads nothing."""
    events = _events(connection, runtime)
    return bool(events & POLLRDHUP) and not events & (POLLERR | POLLHUP)


def _events(connection: socket.socket, runtime: Runtime) -> int:
    poll = runtime.poll()
    poll.register(connection, POLLRDHUP)
    return sum(events for _, events in poll.poll(0))


class _Refused(EndpointUnreachable):
    """Nobody listens there."""
