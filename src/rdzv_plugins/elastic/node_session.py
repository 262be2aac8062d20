"""A node at the service: what it has been told, what it tells the others about itself, and its sessions.

``WatchCache`` is what it has been told: the newest value of every key that it watches. ``Registration`` has the living
session, opens another when that is lost, counts the outage while the service does not do what it should, and writes,
in order, the one key that is written by this node alone.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from rdzv_plugins.coordination import CoordinationBackend, Event, KeyValue, Session, SeveralServices
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import (
    PROTOCOL,
    Assignment,
    Finishing,
    Heartbeat,
    Member,
    OperatorMessage,
    Round,
    decode,
    encode,
)
from rdzv_plugins.elastic.options import ElasticOptions, domain_of, endpoints_of
from rdzv_plugins.elastic.retry import LEAST_S, Outage, known_until
from rdzv_plugins.errors import ConnectionLost, EndpointLost, PluginError, RdzvError, SettingsDiffer
from rdzv_plugins.interfaces import Outcome, Request, RoundEvent, TellEvent
from rdzv_plugins.plain_text import printable
from rdzv_plugins.rounds.ends import ended_error, parse_outcome
from rdzv_plugins.rounds.settings_check import COMMAND, WAY, compare, digest, outline, refusal, signed, wanted
from rdzv_plugins.runtime import SYSTEM, Runtime
from rdzv_plugins.security.job_token import token_of

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_AGAIN_S, _LONGEST_PAUSE_S = 0.5, 2.0
_ONE_REQUEST_S = 30.0
"""A session that is being opened waits no longer for one answer, which may be lost: it is opened anew then."""
_SHOWN_NAME = 80


class WatchCache:
    """What this node has been told. Fed by the watches' threads, read by the agent's. Thread-safe.

    ``on_change`` is called after each batch and each ``wake``, on the thread that brings the news; it returns at once.
    What happens to this node's rounds is told before that, and costs nothing until ``tell_to`` is called.
    """

    def __init__(self, on_change: Callable[[], None], on_asked: Callable[[Event], None], runtime: Runtime) -> None:
        """``on_asked`` is called with each event of a question (``asking``), on that thread, and returns at once."""
        self._on_change, self._on_asked = on_change, on_asked
        self._report: TellEvent | None = None
        self._report_lock = runtime.Lock()
        self._placed = self._complete = self._over = 0  # the newest rounds of which that was told
        self._changed = runtime.Condition()
        self.version = 0  # a number that grows with every change
        self._session = 0
        self.newest = 0  # the newest round that was ever declared, even by a service that no longer knows it
        self._clear()

    def _clear(self) -> None:
        self.leader: KeyValue | None = None  # the key of the leading node
        self.round = self.over = Round()  # the last one declared over: the next may be announced at once with it
        self.assignment: Assignment | None = None
        self.progress = ""
        self.probe = Heartbeat()
        self.notice = OperatorMessage()
        self.finishing = Finishing()
        self.ended: Outcome | None = None

    def begin(self) -> Callable[[Sequence[Event]], None]:
        """Forget everything, and return what takes in the news. A new session's service sends all that it still knows.

        A job that has ended has ended, although a service may forget it with the last session of its nodes. Watches of
        an earlier session may still deliver something, later than those of the new one: that is ignored.
        """
        with self._changed:
            ended = self.ended
            self._clear()
            self.ended = ended
            self._session += 1
            self.version += 1
            return functools.partial(self._feed, self._session)

    def _feed(self, session: int, events: Sequence[Event]) -> None:
        with self._changed:
            if session != self._session:
                return
            for event in events:
                try:
                    self._take(event)
                except ValueError as error:  # a value of another version, or not one of ours
                    logger.warning(
                        "cannot read key '%s' of the rendezvous: %s", printable(event.key, _SHOWN_NAME), error
                    )
        self.wake()

    def wake(self) -> None:
        """Note that something other than a key has changed, so that whoever waits looks again."""
        with self._changed:
            self.version += 1
            self._changed.notify_all()
        self._report_events()
        self._on_change()

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until ``version`` is not ``seen``, or for ``timeout`` seconds; returns the version."""
        with self._changed:
            self._changed.wait_for(lambda: self.version != seen, max(0.0, timeout))
            return self.version

    def report_to(self, tell: TellEvent) -> None:
        """Call ``tell`` from now on; see ``TellEvent``."""
        self._report = tell

    def tell(self, event: RoundEvent) -> None:
        """Report what this node has done itself. Called before it tells the others."""
        if self._report is not None:
            self._report(event)

    def _report_events(self) -> None:
        """Report what is new; it concerns this node's rounds only. Returns at once."""
        if self._report is None:
            return
        with self._report_lock:
            place, declared, over = self.assignment, self.round, self.over
            if self._over < over.number <= self._placed:
                self._over = over.number
                self.tell(RoundEvent("over", over.number, reason=over.reason, cause=over.cause))
            if place is None or not place.is_place:
                return
            if place.round > self._placed:
                self._placed = place.round
                self.tell(RoundEvent("placed", place.round, place.rank, place.world))
            if declared.state == "complete" and self._complete < declared.number == place.round:
                self._complete = place.round
                self.tell(RoundEvent("complete", place.round, place.rank, place.world))

    def _take(self, event: Event) -> None:
        key, value = event.key, event.value
        if key.startswith(keys.ASKED):
            self._on_asked(event)
        elif key == keys.LEADER:
            self.leader = None if value is None else KeyValue(key, value, event.revision)
        elif value is None:  # nothing else is ever deleted
            if key.startswith(keys.NODES):
                self.assignment = None
        elif key == keys.ROUND:
            self.round = decode(Round, value)
            self.newest = max(self.newest, self.round.number)
            if self.round.state == "over":
                self.over = self.round
        elif key == keys.PROGRESS:
            self.progress = printable(value.decode())
        elif key == keys.PROBE:
            self.probe = decode(Heartbeat, value)
        elif key == keys.NOTICE:
            self.notice = decode(OperatorMessage, value)
        elif key == keys.FINISHING:
            self.finishing = decode(Finishing, value)
        elif key == keys.END:
            self.ended = parse_outcome(value)
        elif key.startswith(keys.NODES):
            self.assignment = decode(Assignment, value)


class Registration:
    """This node's sessions with the service, one after the other, and what it says about itself in them. Thread-safe.

    Without a session, or before this node's address is known, nothing is written about it.
    """

    def __init__(
        self,
        backend: CoordinationBackend,
        me: Member,
        request: Request,
        options: ElasticOptions,
        cache: WatchCache,
        runtime: Runtime,
        *,
        several: SeveralServices | None,
        on_outage: Callable[[bool], object],
        on_open: Callable[[Session, float], Assignment | None],
        on_lost: Callable[[Session], object],
    ) -> None:
        """``me``: what is known before the first session. ``several``: the backend, if it has several services.

        ``on_outage``: see ``Outage``. ``on_open``: a session is being opened. It may take so many seconds, and returns
        this node's place in a round that it keeps in that session. ``on_lost``: the session has ended; called before
        anybody knows it.
        """
        self.me, self._on_open, self._on_lost = me, on_open, on_lost
        self._backend, self._request, self._cache, self._runtime = backend, request, cache, runtime
        self._ttl, self._settings = options.ttl, settings_of(request, backend.name, options, me.host, runtime)
        self._is_one = several is None
        # another service takes over as soon as the lost one may be left
        outage_timeout = options.outage_timeout + (several.leaves_within if several is not None else 0.0)
        self._write_lock = runtime.Lock()
        self._is_muted = False
        self._lock = runtime.Lock()
        self.outage = Outage(request.run_id, outage_timeout, lambda: cache.newest > 0, self.give_up, on_outage, runtime)
        """For how long the service has not done what this node needs."""
        self._was_out_since = self._recovered_at = -math.inf  # until a lost session was last followed by another
        self.session: Session | None = None  # the living session; None while there is none
        self.opened = 0
        """Counts the sessions that took no round over; a round joined in an earlier one goes on without this node."""
        self.problem: EndpointLost | PluginError | None = None  # the error once the service is lost for good
        self.is_closed = False  # whether this node has left: no other session follows

    @property
    def is_out(self) -> bool:
        """Whether the service has not answered for a session's life, or not done what it should: it is waited for."""
        session = self.session
        return session is None or self.outage.lasts or known_until(session, math.inf) < self._runtime.now()

    def wait_session(self) -> Session | None:
        """The session; waits while another is opened. None once the service is lost for good or this is closed."""
        while not self.is_closed and self.problem is None:
            seen, session = self._cache.version, self.session
            if session is not None:
                return session
            self._cache.wait(seen, _LOOK_S)
        return None

    def open(self, timeout: float) -> None:
        """Reach the service. Raises ``EndpointUnreachable``, ``RunIdMismatch`` or ``SettingsDiffer``."""
        deadline, left = self._runtime.monotonic() + timeout, timeout
        while True:
            try:
                return self._connect(left)
            except (ConnectionLost, TimeoutError) as error:
                fault = error.__cause__
                if isinstance(fault, PluginError):  # no other session would be better
                    raise fault from fault.__cause__
                # as soon as it was opened: either this process or the service has stood still
                if self._runtime.monotonic() >= deadline:
                    raise error if isinstance(error, ConnectionLost) else ConnectionLost(str(error)) from None
                logger.warning("run %s: %s; trying again", self._request.run_id, error)
                self._runtime.sleep(_AGAIN_S)
                left = round(max(0.0, deadline - self._runtime.monotonic()), 1)  # it appears in messages

    def _connect(self, timeout: float) -> None:
        """Open a session and say in it what each has to say. Takes ``timeout`` seconds at most, and a few more."""
        deadline = self._runtime.now() + timeout

        def left() -> float:
            return max(LEAST_S, min(_ONE_REQUEST_S, deadline - self._runtime.now()))

        lost: list[ConnectionLost] = []  # before it is ours
        session = self._backend.open_session(self._ttl, on_lost=lambda error: self._end(error, lost), timeout=timeout)
        try:
            tell = self._cache.begin()
            session.watch(keys.ALL, tell, timeout=left())
            session.watch(keys.NODES + self.me.node_id, tell, timeout=left())
            written, job = session.create(keys.JOB, json.dumps(self._settings).encode(), timeout=left())
            if not written:
                self._compare(session, job.value, left())
            self.update(serves=self._backend.hosts_service)
            kept = self._on_open(session, left())
        except BaseException:
            session.close()
            raise
        with self._lock:
            if lost:
                raise lost[0]
            self.opened += kept is None
            self.session = None if self.is_closed else session
        if self.is_closed:
            session.close()
        elif kept is not None:
            self._publish_kept(kept)
        self._cache.wake()

    def _compare(self, session: Session, job: bytes, timeout: float) -> None:
        """Raise ``SettingsDiffer``, and tell those who wait for this node that it has come and is leaving."""
        try:
            compare(self._settings, job, self._request.endpoint)
        except SettingsDiffer as error:
            notice = OperatorMessage(refusal(self._settings, error))
            with contextlib.suppress(RdzvError, TimeoutError):  # its own message says so, too
                session.put({keys.NOTICE: encode(notice)}, timeout=timeout)
            raise

    def _end(self, error: ConnectionLost, lost: list[ConnectionLost]) -> None:
        """Handle a lost session, on a thread of the backend. Anyone who is opening one finds the error in ``lost``."""
        with self._lock:
            lost.append(error)
            session = self.session
            if self.is_closed or session is None:
                return
            self._on_lost(session)
            self.session = None
        self._runtime.Thread(target=self._recover, args=(error,), name="rdzv-reconnect").start()
        self._cache.wake()

    def _recover(self, lost: ConnectionLost) -> None:
        """Open another session; workers go on meanwhile. A service that is not back within an outage's time is lost.

        Whatever it says meanwhile: it may be about to be put right. Only a job that has not begun takes that for final.
        """
        if isinstance(lost.__cause__, PluginError) and not self._cache.newest:
            self.give_up(lost)
            return
        since = self._runtime.now() if lost.silent_since is None else lost.silent_since
        # it opens sessions, and keeps none alive: that is one outage, or this would go on for ever
        again = since <= self._recovered_at and self._is_one
        if again:
            since = self._was_out_since
        elif lost.silent and lost.silent_since is None and self._is_one:  # for all of that time
            since = -math.inf
        self.outage.begin(since)
        left, pause = self.outage.left, _AGAIN_S
        if again and not left:
            self.give_up(lost)
            return
        logger.warning(
            "run %s: %s; trying to reconnect for up to %.0f s", self._request.run_id, lost, max(LEAST_S, left)
        )
        while not self.is_closed:
            asked, timeout = self._runtime.now(), max(LEAST_S, round(left, 1))  # it appears in messages
            try:
                self._connect(timeout)
            except Exception as error:
                if not isinstance(error, (RdzvError, TimeoutError)) and pause == _AGAIN_S:  # once
                    logger.exception("run %s: could not reconnect to the rendezvous", self._request.run_id)
                # it did not need all the time
                answer = isinstance(error, RdzvError) and self._runtime.now() < asked + timeout
                refused = answer and not isinstance(error, ConnectionLost)
                then = error if refused or not lost.silent else None  # else it has said what is wrong
                final = refused and not self._cache.newest
                if self.outage.ended_by(error, asked, timeout) or final:
                    self.give_up(lost, then)
                    return
            else:
                self._was_out_since, self._recovered_at = since, self._runtime.now()
                self.outage.over()
                logger.warning(
                    "run %s: reconnected%s with a new session", self._request.run_id, self._request.at_endpoint
                )
                return
            self._runtime.sleep(min(pause, self.outage.left))
            pause, left = min(1.5 * pause, _LONGEST_PAUSE_S), self.outage.left

    def raise_if_failed(self) -> None:
        """Raise the reason if the job has failed elsewhere."""
        ended = self._cache.ended
        if ended is not None and ended.end != "done":
            raise ended_error(ended, self._request)

    def raise_if_over(self) -> None:
        """Raise the reason if the job has failed elsewhere, or the service is lost."""
        self.raise_if_failed()
        if self.problem is not None:
            raise self.problem

    def close(self) -> None:
        """End the session; no other follows."""
        with self._lock:
            self.is_closed = True
            session, self.session = self.session, None
        if session is not None:
            session.close()

    def give_up(self, error: Exception, then: Exception | None = None) -> None:
        """The service is lost for good: by ``error``, and because of ``then`` nothing has become of another session."""
        if self.problem is not None:
            return
        if isinstance(error.__cause__, PluginError):  # it says all there is to say
            self.problem = error.__cause__
            self._cache.wake()
            return
        text = f"lost the rendezvous of run {self._request.run_id!r}{self._request.at_endpoint}: {error}"
        remedies = [each.remedy for each in (then, error) if isinstance(each, RdzvError) and each.remedy]
        self.problem = EndpointLost(
            text + (f" (then: {then})" if then is not None else ""),
            remedy=next(iter(remedies), "")
            or "Check the output of the process that serves it, and the network in between.",
        )
        self._cache.wake()

    # what this node says about itself

    def mute(self) -> None:
        """Say nothing more, in any session."""
        with self._write_lock:
            self._is_muted = True

    def update(self, **changes: Any) -> None:
        """Change it; the change is written with whatever is said next."""
        with self._write_lock:
            self.me = replace(self.me, **changes)

    def publish(self, *, unless: Callable[[], bool] = lambda: False, **changes: Any) -> bool:
        """Change it, and write it however long that takes. If the session ends that is enough: the next begins with it.

        Does nothing, and returns False, if ``unless`` is true once nobody else is writing.
        """
        with self._write_lock:
            if unless():
                return False
            self.me = replace(self.me, **changes)
            self._write()
            return True

    def publish_cut_off(self, round_: int, reason: str) -> bool:
        """Say that its workers are cut off and need another round. False if it has already left that round."""

        def has_left() -> bool:
            return self.me.last_round >= round_ or self.me.finished_round == round_

        return self.publish(unless=has_left, last_round=round_, cut_off_round=round_, reason=reason)

    def _publish_kept(self, place: Assignment) -> None:
        """Tell a service without memory that it keeps its place, if it has not left that round in the meantime."""
        logger.warning("the rendezvous has lost its data: round %d goes on if all of its nodes come back", place.round)
        known = self._cache.newest
        with self._write_lock:
            self.me = replace(self.me, keeps=place, known_round=known, heartbeat_wanted=0, heartbeat_answered=0)
            if self.me.kept is None:
                self.me = replace(self.me, keeps=None)
            self._write()

    def publish_within(self, timeout: float, **changes: Any) -> None:
        """Like ``say``, for at most ``timeout`` seconds: a node that leaves does not wait for a silent service."""
        asked = self._runtime.now()
        if not self._write_lock.acquire(timeout=max(0.0, timeout)):  # somebody else is writing it
            return
        try:
            self.me = replace(self.me, **changes)
            self._put(until=asked + timeout)
        except (TimeoutError, RdzvError) as error:
            logger.debug("could not tell the other nodes of %s: %s", ", ".join(changes), error)
        finally:
            self._write_lock.release()

    def _write(self) -> None:
        with contextlib.suppress(ConnectionLost):
            self._put(until=math.inf)

    def _put(self, until: float) -> None:
        session = self.session
        if session is None or not self.me.address or self._is_muted:
            return
        item = {keys.MEMBERS + self.me.node_id: encode(self.me)}
        self.outage.retry_until_lost(
            session, lambda timeout: session.put(item, ephemeral=True, timeout=timeout), until=until
        )


def new_member(request: Request, runtime: Runtime, *, serves: bool) -> Member:
    """Describe this process before anybody has seen its address. ``serves``: it serves the endpoint."""
    domain = domain_of(request)
    return Member(
        node_id=runtime.uuid4().hex,
        host=runtime.gethostname(),
        machine=runtime.machine_id(),
        pid=runtime.getpid(),
        address="",
        public="",
        nproc=request.nproc_per_node,
        node_rank=request.node_rank,
        rank_moves=bool(domain) and request.node_rank is not None and request.rank_moves,
        domain=domain,
        serves=serves,
    )


def settings_of(
    request: Request, backend: str, options: ElasticOptions, host: str, runtime: Runtime = SYSTEM
) -> dict[str, Any]:
    """The settings that nodes compare, this node's, and who it is: everything that each node of the job may read."""
    store, fanout, same_command = options.store, options.fanout, options.same_command
    settings = {
        "protocol": PROTOCOL,
        "run_id": request.run_id,
        "backend": backend,
        "nnodes": wanted(request.min_nodes, request.max_nodes),
        "store": store,
    }
    if request.entrypoint:  # plain torchrun does not provide it
        settings[WAY] = same_command
        if same_command != "no":
            compared = request.entrypoint if same_command == "arguments" else request.entrypoint[:1]
            settings[COMMAND] = digest(compared)
    if os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL") == "1":  # torch then computes ranks from its own number
        settings["nproc"] = request.nproc_per_node
    if fanout:
        settings["fanout"] = fanout  # who is whose parent is known from the rank alone
    for name in ("node_unit", "min_per_domain"):  # the leader uses its own
        if (value := getattr(options, name)) != 1:
            settings[name] = value
    if token_of(request) is not None:  # where nodes meet at a service of their own, one without would get this far
        settings["token"] = "given"
    if request.preflight:
        settings["preflight"] = ",".join(request.preflight)
    if places := endpoints_of(request):
        settings["endpoints"] = ",".join(map(str, places))
    return signed(settings, host, runtime) | {COMMAND: outline(request.entrypoint)}
