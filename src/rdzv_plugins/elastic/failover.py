"""Several endpoints as one ``CoordinationBackend``: sessions are opened at the endpoint that serves the run now.

The first living endpoint serves, the others stand by. A session ends when its endpoint is lost or is found to have been
replaced; the next may be at another endpoint, which knows nothing of the run: the nodes bring along what they know
(``EpochVotes``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from rdzv_plugins.coordination import SeveralServices
from rdzv_plugins.elastic.endpoint_monitor import EndpointMonitor
from rdzv_plugins.elastic.failover_rules import (
    Choice,
    better_endpoint,
    read_init_claim,
    select_endpoint,
    write_init_claim,
)
from rdzv_plugins.elastic.keys import INIT_CLAIM, INITIALIZED, ROUND, Assignment, Round, votes_complete
from rdzv_plugins.elastic.liveness_probe import ProbePort, name_of
from rdzv_plugins.elastic.node_session import Registration
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import ConnectionLost, EndpointUnreachable, RdzvError, SettingsDiffer
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination, NativeSession
from rdzv_plugins.runtime import Runtime
from rdzv_plugins.timing import Reporting

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_SETTLE_S = 3.0
"""How many seconds the first endpoints are given to come up at the start, before another is used instead."""
_JOIN_S = 5.0
_ALONE_S = 5.0
"""After this many seconds without a working round, members are counted to see if more nodes are at another endpoint."""
_NODES_PER_S = 500  # the more nodes there are, the less often they are counted
_SLACK_S = 1.0
_OF_TTL = 1 / 3
"""A server counts from what it heard last: that may be so much later than the last request that it has answered."""


class FailoverBackend:
    """A ``CoordinationBackend`` of several endpoints. Thread-safe.

    ``services`` belong to ``endpoints``, in order of preference; ``own`` is the one that this process serves.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        services: Sequence[NativeCoordination],
        own: int | None,
        ttl: float,
        runtime: Runtime,
    ) -> None:
        self._runtime = runtime
        self._endpoints, self._services, self._own, self._ttl = tuple(endpoints), tuple(services), own, ttl
        self.name, self._names = services[0].name, tuple(map(str, endpoints))
        self.leaves_within = ttl * (1 + _OF_TTL) + _SLACK_S  # the most seconds until a lost endpoint may be left
        self._changed = self._runtime.Condition()
        self._version = 0
        self._refusals: set[str] = set()
        self._monitors: list[EndpointMonitor] = []
        self._session: NativeSession | None = None
        self._on_lost: Callable[[ConnectionLost], None] = lambda _: None
        self._free_at = -math.inf
        """When the endpoint that was left has ended this node's session there, unless it stood still; by ``now``."""
        self._in_time = False  # the session has ended while it was alive, and nothing was in between
        self._closed = False
        self._knows = False  # this node was in a complete round, as far as it has heard
        self.begins_at: int | None = None
        """The endpoint where the first round is begun, once this node has joined there for that."""
        self.at: int | None = None  # the endpoint of the newest session
        self.left_gone = False  # whether the process that served the previous endpoint is known to be gone

    @property
    def hosts_service(self) -> bool:
        """Whether this process serves the endpoint at which this node is a member."""
        return self.at is not None and self.at == self._own

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> NativeSession:
        """See ``CoordinationBackend.open_session``; opens it at the endpoint where the run is served, or will be."""
        start = self._runtime.monotonic()
        if not self._monitors:
            self._monitors = [
                EndpointMonitor(endpoint, service, self._ttl, self._wake, self._names, self._runtime)
                for endpoint, service in zip(self._endpoints, self._services, strict=True)
            ]
            self._runtime.Thread(target=self._watch, name="rdzv-failover").start()
        reporting = Reporting(runtime=self._runtime)
        while True:
            seen = self._version
            self._raise_errors()
            choice = self._choose(self._runtime.monotonic() - start)
            if choice.step == "claim":
                self._claim(choice.place)
            if choice.step == "join" and (session := self._join(choice, ttl, on_lost)) is not None:
                return session
            left = start + timeout - self._runtime.monotonic()
            if left <= 0 or self._closed:
                raise EndpointUnreachable(
                    f"could not join any of the endpoints {self} within {timeout:g} s: {self._why(choice)}",
                    remedy="Check the output of the processes that serve them, and the network in between.",
                )
            if reporting.is_due():
                waited = self._runtime.monotonic() - start
                logger.info(
                    "waiting for an endpoint: %s: %s (%.0f s of %g s)", self, self._why(choice), waited, timeout
                )
            self._wait(seen, min(left, _LOOK_S / 5))

    def note_complete(self) -> None:
        self._knows = True

    def close(self) -> None:
        self._closed = True
        self._wake()
        for monitor in self._monitors:
            monitor.close()
        for service in self._services:
            service.close()

    def __str__(self) -> str:
        return ",".join(self._names)

    def _choose(self, waited: float) -> Choice:
        statuses = [monitor.status for monitor in self._monitors]
        first = self.at is None
        if first and waited < _SETTLE_S and not all(status.tried for status in statuses):
            return Choice("wait", why="none of the endpoints answers")
        choice = select_endpoint(statuses, knows=self._knows)
        early = any(status.refused for status in statuses[: choice.place]) and waited < _SETTLE_S
        if choice.step == "claim" and early:
            return Choice("wait", choice.place, "the endpoints before it are not served yet")
        if choice.step != "join" or first or choice.place == self.at or self._may_leave():
            return choice
        return Choice("wait", self.at or 0, "it may still count this node as a member")

    def _may_leave(self) -> bool:
        """Whether this node no longer counts at the endpoint of the last session."""
        assert self.at is not None
        status = self._monitors[self.at].status
        self.left_gone = self._in_time and status.gone
        newer = any(other.works and other.round > status.round for other in (each.status for each in self._monitors))
        return self.left_gone or self._runtime.now() >= self._free_at or (status.answers and newer)

    def _claim(self, target: int) -> None:
        """Have all endpoints that answer remember where the first round is begun, in order; an existing value stays."""
        for monitor in self._monitors:
            if monitor.status.answers and monitor.status.claimed_at < 0 and not monitor.status.others:
                try:
                    claimed_at, others = read_init_claim(
                        monitor.remember(INIT_CLAIM, write_init_claim(target, self._names)).encode(), self._names
                    )
                except (ConnectionLost, TimeoutError) as error:
                    logger.debug("claiming the first round at %s: %s", monitor.endpoint, error)
                    return  # it may have been remembered there
                except RdzvError as error:
                    self._note_refusal(error)
                    continue
                if others:
                    return
                target = claimed_at

    def _join(self, choice: Choice, ttl: float, on_lost: Callable[[ConnectionLost], None]) -> NativeSession | None:
        target, held, witnessed = choice.place, list[NativeSession](), False

        def lost(error: ConnectionLost) -> None:
            session = held[0] if held else None
            if session is not None:
                self._free_at = _free_at(session)
                direct = session.local_addr == session.seen_as
                self._in_time = witnessed and direct and self._runtime.now() < session.known_until
            self._session = None
            self._monitors[target].recheck()  # before anybody chooses: it would be dialled for seconds
            on_lost(error)

        try:
            session = self._services[target].open_session(ttl, on_lost=lost, timeout=_JOIN_S)
        except EndpointUnreachable as error:
            logger.debug("joining at %s: %s", self._endpoints[target], error)
            self._monitors[target].recheck()
            return None
        if choice.remembers and not self._remembers(session):
            session.close()
            self._monitors[target].recheck()
            return None
        held.append(session)
        witnessed = self._monitors[target].is_witnessed()  # else another process has just taken its port
        before, self.at = self.at, target
        if before is None or before == target:
            self.left_gone = False
        if before not in (None, target):
            logger.warning("the rendezvous is served at %s now", self._endpoints[target])
        elif before is None and target:
            logger.info("the rendezvous is served at %s", self._endpoints[target])
        if choice.first:
            self.begins_at = target
        self._session, self._on_lost = session, on_lost
        return session

    def _remembers(self, session: NativeSession) -> bool:
        """Whether the endpoint still knows of a round. If so it does for as long as the session lasts.

        What was seen of it may be from before it forgot the run, as when this node stood still for a while.
        """
        try:
            return any(session.list(prefix, timeout=_JOIN_S)[0] for prefix in (ROUND, INITIALIZED))
        except (ConnectionLost, TimeoutError) as error:
            logger.debug("%s: %s", self.name, error)
            return False

    def _watch(self) -> None:
        """Keep an eye on the other endpoints while this node is a member at one."""
        counted: tuple[NativeSession, float] | None = None  # where no round works, and when it is counted next
        while not self._closed:
            seen = self._version
            try:
                counted = self._look_elsewhere(counted)
            except Exception as error:  # the next look may do better
                if repr(error) not in self._refusals:
                    self._refusals.add(repr(error))
                    logger.exception("could not check the other endpoints")
            self._wait(seen, _LOOK_S if counted is not None else 10 * _LOOK_S)

    def _look_elsewhere(self, counted: tuple[NativeSession, float] | None) -> tuple[NativeSession, float] | None:
        """Leave the endpoint if another is better; ``counted`` and the result are as in ``_watch``."""
        session, at = self._session, self.at
        if session is None or at is None:
            return None
        self._remember_initialized()
        counts = counted is not None and counted[0] is session and self._runtime.monotonic() >= counted[1]
        if counts:
            for monitor in self._monitors:
                monitor.count()
        statuses = [monitor.status for monitor in self._monitors]
        better = better_endpoint(statuses, at)
        if better is not None and (counts or statuses[better].works):
            self._leave(session, at, better)
        if statuses[at].works or not (self._knows or statuses[at].round or statuses[at].initialized):
            return None
        if counts or counted is None or counted[0] is not session:
            most = max(status.members for status in statuses)
            return session, self._runtime.monotonic() + max(_ALONE_S, most / _NODES_PER_S)
        return counted

    def _leave(self, session: NativeSession, at: int, better: int) -> None:
        where, there = self._endpoints[at], self._endpoints[better]
        if self._session is not session:
            return
        self._session, self._free_at, self._in_time = None, _free_at(session), False
        session.close()
        works = self._monitors[better].status
        why = f"round {works.round} works at {there}" if works.works else f"more nodes are at {there}"
        self._on_lost(ConnectionLost(f"{where} no longer serves this job: {why}"))

    def _remember_initialized(self) -> None:
        """Have all endpoints remember that there was a round: from then on no first one is begun."""
        if not (self._knows or any(monitor.status.round for monitor in self._monitors)):
            return
        for monitor in self._monitors:
            if monitor.status.answers and not monitor.status.initialized:
                try:
                    monitor.remember(INITIALIZED, "true")
                except (ConnectionLost, TimeoutError) as error:
                    logger.debug("%s: %s", monitor.endpoint, error)
                except RdzvError as error:
                    self._note_refusal(error)

    def _note_refusal(self, error: RdzvError) -> None:
        """The endpoint answers but does not remember what it should, perhaps because it is full. The others may."""
        if str(error) not in self._refusals:
            self._refusals.add(str(error))
            logger.warning("an endpoint of this job does not accept its state: %s", error)

    def _raise_errors(self) -> None:
        """At the start, raise for an endpoint of another run or list; later, such a one does not answer, or waits."""
        if self.at is None:
            for monitor in self._monitors:
                if monitor.error is not None:
                    raise monitor.error
                if others := monitor.status.others:
                    raise SettingsDiffer(
                        f"this node was started with other settings than the first node of the job at "
                        f"{monitor.endpoint}: --rdzv-endpoint: here {self}, there {others}",
                        remedy="Start all nodes with the same endpoints, in the same order.",
                    )

    def _why(self, choice: Choice) -> str:
        why = f"{self._endpoints[choice.place]}: {choice.why}" if choice.place >= 0 else choice.why
        wrong = [f"{each.endpoint}: {each.wrong}" for each in self._monitors if each.wrong]
        return f"{why} ({'; '.join(wrong)})" if wrong else why

    def _wake(self) -> None:
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def _wait(self, seen: int, timeout: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._version != seen or self._closed, timeout)


def _free_at(session: NativeSession) -> float:
    """When a running server has ended ``session``, from which nothing more is heard."""
    return session.known_until + _OF_TTL * session.ttl + _SLACK_S


class EpochVotes:
    """What a node carries from one of several services to another, its votes in rounds: its part of ``quorum``.

    Each change is written with what the node says next, before anything relies on it. Called by the thread that joins
    and by the one that opens sessions, never by both at once.
    """

    def __init__(self, services: SeveralServices, registration: Registration, port: ProbePort) -> None:
        self._services, self._registration, self._port = services, registration, port
        self._server = -1  # the rank of the node that served the place of the last complete round
        self._at: int | None = None

    @property
    def is_at_first(self) -> bool:
        """Whether the newest session is at the service where the first round begins."""
        return self._services.at == self._services.begins_at

    def complete(self, place: Assignment, declared: Round) -> bool:
        """Note that the round of ``place`` was complete. Returns whether this node goes on in it.

        It does not if it has since reached another elsewhere, and come back: that one may have been complete, too.
        """
        self._server = declared.server_rank
        self._services.note_complete()
        votes = votes_complete(self._registration.me.votes, place)
        self._registration.update(votes=votes, gone_server_rank=-1, server_rank=-1)
        return len(votes) == 1

    def arrive(self, on_move: Callable[[], None]) -> None:
        """A session was opened. If it is at another service, tell whoever watches this node from the last one.

        ``on_move`` is called then, before anything is said there. Raises ``TimeoutError`` if they cannot be told now.
        """
        if self._has_moved():
            on_move()
            was_open, me = self._port.part(), self._registration.me
            self._registration.update(incarnation=me.incarnation + 1)
            if was_open:
                name = name_of(me.node_id, me.incarnation + 1)
                self._registration.update(listens=self._port.listen(name, me.address, me.public))
        self.settled()

    def _has_moved(self) -> bool:
        """Whether the newest session is at a different service from the one that was ``settled`` before."""
        return self._at not in (None, self._services.at)

    def settled(self) -> None:
        """Nothing of this node is left at the previous service, and nothing of what it did there is said elsewhere.

        A node that was leaving says nothing more: its voice stays where it said so, and must not count twice.
        """
        if self._has_moved():
            gone = self._server if self._services.left_gone else -1
            self._registration.update(server_rank=self._server, gone_server_rank=gone, store=None)
            if self._registration.me.leaving:
                self._registration.mute()
        self._at = self._services.at
