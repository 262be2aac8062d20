"""The elastic rendezvous of one node, over any ``CoordinationBackend``: what an agent asks for, and how a node leaves.

A node writes its own key and waits to be told its place; the leader, which is one of the nodes, decides
(``membership``). That takes two writes per node and round, however many nodes there are, and nothing while a round
lasts. A node that serves something others use leaves last: it waits until they no longer need it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rdzv_plugins import errors
from rdzv_plugins.coordination import CoordinationBackend, Event, KeyValue, Session, SeveralServices
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.coordinator.placement import Order
from rdzv_plugins.elastic.current_round import CurrentRound, FailureDetector, NodeContext
from rdzv_plugins.elastic.election import Election
from rdzv_plugins.elastic.join import MemberJoin
from rdzv_plugins.elastic.keys import Assignment, Finishing, Member, encode, readable
from rdzv_plugins.elastic.liveness_probe import ProbePort
from rdzv_plugins.elastic.node_session import Registration, WatchCache, new_member
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.elastic.retry import BackgroundTasks, request_timeout
from rdzv_plugins.elastic.round_store import RoundStore
from rdzv_plugins.elastic.rpc import ElasticRpc
from rdzv_plugins.handler import must_join_again
from rdzv_plugins.interfaces import (
    Failure,
    NodeCheck,
    Outcome,
    RendezvousHandler,
    Request,
    RoundInfo,
    StoreInfo,
    TellEvent,
)
from rdzv_plugins.rounds.ends import drain_wait, parse_failure, to_json
from rdzv_plugins.runtime import SYSTEM, Runtime
from rdzv_plugins.security.certificates import certificates_of
from rdzv_plugins.security.job_token import token_of

if TYPE_CHECKING:
    from rdzv_plugins.elastic.failover import EpochVotes

logger = logging.getLogger(__name__)

_BEFORE_WORKERS_S = 2.0
"""How much of the time in which workers have to end may be spent on telling the others, in seconds."""


class ElasticHandler(RendezvousHandler):
    """Called by the agent's main thread; ``note_failure`` may be called from any thread."""

    def __init__(
        self,
        backend: CoordinationBackend,
        request: Request,
        options: ElasticOptions,
        order: Order = lambda _: None,
        *,
        several: SeveralServices | None = None,
        runtime: Runtime = SYSTEM,
        store: type[RoundStore] = RoundStore,
    ) -> None:
        """``several``: the backend, if its sessions are at one of several services.

        ``store`` makes what serves and reaches the workers' stores.
        """
        self._backend, self._request, self._options, self._runtime = backend, request, options, runtime
        me, port = new_member(request, runtime, serves=backend.hosts_service), ProbePort(request.local_addr, runtime)
        self._cache = cache = WatchCache(self._on_change, lambda event: self.questions.on_question(event), runtime)
        self._registration = registration = Registration(
            backend,
            me,
            request,
            options,
            cache,
            runtime,
            several=several,
            on_outage=port.note_outage,
            on_open=self._open,
            on_lost=lambda session: self._round.session_lost(session),
        )
        self._round = own = CurrentRound(cache, registration, options.ttl, runtime)
        self._port = port
        self.questions: ElasticRpc = ElasticRpc(registration, request.run_id, runtime)
        self.holding = own
        self._store = store(
            options,
            lambda round_, why: self._failure_detector.cut_off(round_, why),
            runtime,
            session_lives=own.session_lives,
            token=token_of(request),
            run_id=request.run_id,
            several=request.max_nodes > 1,
            tls=certificates_of(request),
        )
        self._in_background = doing = BackgroundTasks(request.run_id, runtime)
        self._votes = votes = _votes_of(several, registration, port)
        node = NodeContext(request, options, cache, registration, own, self._store, port, doing, runtime, votes)
        self._election = election = Election(node, order)
        self._member_join = MemberJoin(node, election)
        self._failure_detector = FailureDetector(node)
        self._restarts: dict[int, str] = {}
        self._first_failure = 0, b""
        """Of the round in which workers of this node have failed last, as it was known when they had."""
        self._working = False  # the agent has begun to ask about its workers
        self._write_lock = runtime.Lock()
        self._logged_over = 0
        self._logged_notice = ""

    def get_backend(self) -> str:
        return self._backend.name

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_run_id(self) -> str:
        return self._request.run_id

    def is_closed(self) -> bool:
        return self._cache.ended is not None

    def set_closed(self) -> None:
        self._end_job(Outcome("done", "it was closed by a node"))

    def num_nodes_waiting(self) -> int:
        self._working = True
        self.raise_if_ended()
        return int(self.must_rejoin())

    def must_rejoin(self) -> bool:
        return self._round.must_rejoin()

    def raise_if_ended(self) -> None:
        self._registration.raise_if_over()

    def note_failure(self, failure: Failure) -> None:
        session, round_ = self._registration.session, self._round.number
        if session is not None:
            key, mine = f"{keys.FAILURES}{round_}", to_json(failure).encode()
            _, first = session.create(key, mine, timeout=request_timeout(session))
            self._first_failure = round_, first.value

    def first_failure(self) -> Failure | None:
        session, (round_, first) = self._registration.session, self._first_failure
        if round_ == self._round.number:
            return parse_failure(first)
        if session is None:
            return None
        key = f"{keys.FAILURES}{self._round.number}"
        held, _ = session.list(key, timeout=request_timeout(session))
        return next((parse_failure(kv.value) for kv in held if kv.key == key), None)

    def count_restart(self, note: str) -> Sequence[str]:
        """Count a restart in the service. Tells one that has lost its memory what this node knows."""
        session, mine = self._registration.session, self._restarts
        if session is None:
            raise errors.ConnectionLost("there is no session with the rendezvous now")
        mine.setdefault(self._round.number, note)
        held, _ = session.list(keys.RESTARTS, timeout=request_timeout(session))
        known = keys.restarts_of(held)
        for round_ in sorted(mine.keys() - known.keys()):
            _, kept = session.create(
                f"{keys.RESTARTS}{round_}", mine[round_].encode(), timeout=request_timeout(session)
            )
            known |= keys.restarts_of([kept])
        mine.update(known)
        return [note for _, note in sorted(mine.items())]

    def tell_events(self, tell: TellEvent) -> None:
        self._cache.report_to(tell)

    def check_by(self, checks: Callable[[], Sequence[NodeCheck]]) -> bool:
        self._member_join.check_by(checks)
        return True

    def waits_for(self) -> str:
        return self._member_join.facts()

    def note_done(self) -> None:
        self._registration.publish(finished_round=self._round.number)

    def note_leaving(self, reason: str) -> None:
        self._registration.publish_within(_BEFORE_WORKERS_S, leaving="lost", reason=reason)

    def peer_lost(self) -> bool:
        return self._failure_detector.peer_lost()

    def working_peers(self) -> Sequence[str]:
        session = self._registration.session
        if not self._round.number:
            return ()
        try:
            if session is not None:
                held, _ = session.list(keys.MEMBERS, timeout=request_timeout(session))
                others = (each for each in readable(Member, held) if each.node_id != self._registration.me.node_id)
                return [each.name for each in others if each.store_ready_round == self._round.number and _works(each)]
        except (TimeoutError, errors.RdzvError) as error:
            logger.debug("could not ask who works: %s", error)
        # an outage says nothing of the others, and ends by itself
        return ["nodes that cannot be listed now"]

    # a round that has lost a node is over: peer_lost tells it, and lost_peers has nothing to add

    def stay(self) -> None:
        """See the base class. Returns at once if this node serves nothing."""
        if not (self._backend.hosts_service or self._serves_others()):
            return
        try:
            while (session := self._registration.wait_session()) is not None:
                self._publish_end(session, Outcome("done"))
                with PeerSet(session, self._registration.me.node_id, self._needed_by, self._runtime) as left:
                    go_on = functools.partial(self._goes_on, session)
                    drain_wait(go_on, left.names, self._runtime, every=0.0, gone=left.wait_gone)
                if session is self._registration.session:
                    return
        except (errors.ConnectionLost, TimeoutError) as error:
            logger.debug("could not wait for the other nodes: %s", error)

    def leave(self, outcome: Outcome) -> None:
        """Tell the others. A node that serves something stays until they have left, at most ``linger`` seconds.

        If it serves the endpoint that is until all have gone. Otherwise it is until all have said that they are
        leaving, which they do before they wait themselves: they no longer need a store.
        """
        session = self._registration.session
        if session is None or self._registration.problem is not None:  # it would not be heard
            return
        try:
            ends_all = self._backend.hosts_service and self._votes is None  # else another place serves from now on
            if outcome.end == "failed" or (outcome.end == "lost" and ends_all):
                self._end_job(outcome)
            self._publish_end(session, outcome)
            if outcome.end == "lost":
                self._wait_declared()
            done = outcome.end == "done"
            if (self._backend.hosts_service and (done or ends_all)) or (done and self._serves_others()):
                me = self._registration.me
                with PeerSet(session, me.node_id, lambda other: me.serves or not other.leaving, self._runtime) as left:
                    left.wait_gone(self._options.linger)
        except (errors.ConnectionLost, TimeoutError) as error:
            logger.debug("could not tell the other nodes how this one ended: %s", error)

    def _end_job(self, outcome: Outcome) -> None:
        """End the job for all nodes, unless it has ended already."""
        session = self._registration.session
        if session is not None:
            session.create(keys.END, to_json(outcome).encode(), timeout=request_timeout(session))

    def _publish_end(self, session: Session, outcome: Outcome) -> None:
        if self._registration.me.leaving == outcome.end:
            return  # already said
        if outcome.end == "done" and self._round.number:
            finishing = Finishing(self._round.number, self._registration.me.name)
            try:
                session.put({keys.FINISHING: encode(finishing)}, timeout=request_timeout(session))
            except (TimeoutError, errors.RdzvError) as error:  # it is done all the same
                logger.debug("could not tell the other nodes that this one is done: %s", error)
        quick = outcome.end == "lost"  # nobody waits to hear that
        self._registration.publish_within(
            _BEFORE_WORKERS_S if quick else request_timeout(session), leaving=outcome.end, reason=outcome.reason
        )

    def _wait_declared(self) -> None:
        """If leading, declare the round over before leaving: a successor would not see why this node has gone."""
        deadline = self._runtime.monotonic() + _BEFORE_WORKERS_S
        while self._election.leads and self._runtime.monotonic() < deadline:
            seen, declared = self._cache.version, self._cache.round
            if declared.number != self._round.number or declared.state == "over":
                return
            self._cache.wait(seen, deadline - self._runtime.monotonic())

    def _needed_by(self, other: Member) -> bool:
        """Whether ``other`` needs this node: the endpoint is needed by all, a round's store by that round's nodes."""
        return _works(other) and (self._backend.hosts_service or other.store_ready_round == self._round.number)

    def _goes_on(self, session: Session) -> bool:
        """Whether this node stays: it is of use while its session lives. Raises the reason if the job has failed."""
        self._registration.raise_if_failed()
        over = self._cache.round.number > self._round.number  # then only the endpoint is needed
        return session is self._registration.session and (self._backend.hosts_service or not over)

    def _serves_others(self) -> bool:
        """Whether this node serves others: the workers' store, or the proxies of other nodes."""
        place = self._round.place
        return place is not None and place.world > 1 and (place.rank == 0 or self._store.is_parent)

    def shutdown(self) -> bool:
        self._registration.close()
        self._election.close()
        self._backend.close()
        self._cache.wake()
        self._store.shutdown()
        self._port.close()  # last: this node's own port stays open as long as the session may live
        return True

    def worker_env(self) -> Mapping[str, str]:
        return self._store.environment | {"RDZV_ROUND": str(self._round.number)}

    def next_rendezvous(self) -> RoundInfo:
        while True:
            self.raise_if_ended()
            self._working, self._first_failure = False, (0, b"")  # rounds count from 1 again if a service forgets all
            self._log_over()  # on the watch's thread it may come too late: the next round may begin first
            place = self._member_join.next_place()
            self._interrupt_waits()  # it may have been over before this node had finished joining
            try:
                where = self._store.open(place, self._request.local_addr)
            except (errors.StoreError, errors.EndpointUnreachable, errors.RunIdMismatch) as error:
                if not must_join_again(self):
                    raise self._proxy_error(error) from error
                logger.info("round %d was over before this node's proxy was connected (%s)", place.round, error)
                continue
            self._election.watch_leader()
            return RoundInfo(self._store.agents, place.rank, place.world, StoreInfo(where.host, where.port))

    def _proxy_error(self, error: Exception) -> errors.RendezvousFailed:
        run = f"run {self._request.run_id!r}"
        if isinstance(error, errors.EndpointUnreachable):
            return errors.EndpointUnreachable(f"{run}: {error}", remedy=error.remedy)
        return errors.RendezvousFailed(
            f"{run}: this node's proxy cannot reach the store: {error}",
            remedy="The key trunk/N is written by node N, whose proxy connects this one (--rdzv-conf fanout). "
            "Check that node's output.",
        )

    def _open(self, session: Session, timeout: float) -> Assignment | None:
        """A session is being opened: note what is to be said there. Returns this node's place if it keeps its round."""
        if self._votes is not None:
            self._votes.arrive(self._election.moved)
            self._registration.update(last_led=self._election.led)
        return self._round.carry_over(session, timeout)

    def _on_change(self) -> None:
        """Do at once what cannot wait until the agent asks. Called on the watch's thread."""
        self._round.on_change()
        cache = self._cache
        self._election.watch_leader()
        self._interrupt_waits()
        over = cache.over.number
        if over == self._round.number > 0 and not self._round.is_joining:
            self._log_over()
            if not self._working:  # agents may be waiting in the store for a lost one: do not let them wait in vain
                self._in_background(f"close {over}", lambda: self._store.close(over))
        # a node that is refused has no session yet: it ends with an error of its own
        if cache.notice.text != self._logged_notice and self._registration.session is not None:
            self._logged_notice = cache.notice.text
            logger.warning("%s", cache.notice.text)
        place = cache.assignment
        asked = cache.probe.number > self._registration.me.heartbeat_answered and not cache.probe.answered
        if asked and place is not None and cache.probe.round == place.round:
            self._in_background("alive", lambda: self._registration.publish(heartbeat_answered=cache.probe.number))
        if cache.leader is None and not self._round.is_joining and self._round.number:
            self._in_background("lead", self._election.campaign)

    def _interrupt_waits(self) -> None:
        """End this agent's waits in its round's store if what they wait for can no longer come. Any thread."""
        if not self._round.is_joining and (reason := self._interrupt_reason()):
            self._store.interrupt(self._round.number, reason)

    def _interrupt_reason(self) -> str:
        declared, ended, round_ = self._cache.round, self._cache.ended, self._round.number
        if self._registration.problem is not None:
            return str(self._registration.problem)
        if ended is not None and ended.end != "done":
            return f"the job has ended: {ended.reason}"
        if not self.must_rejoin():
            return ""
        if declared.number == round_ and declared.state == "over":
            return f"round {round_} is over: {declared.reason}"
        if declared.number > round_:
            return f"round {declared.number} has begun without this node"
        return f"this node must leave round {round_}: it has lost the store or its session"

    def _log_over(self) -> None:
        """Say once why the round that this node was in is over. Any thread."""
        over = self._cache.over
        with self._write_lock:
            if not self._logged_over < over.number == self._round.number:
                return
            self._logged_over = over.number
        logger.info("round %d is over: %s", over.number, over.reason)


def _votes_of(several: SeveralServices | None, registration: Registration, port: ProbePort) -> EpochVotes | None:
    if several is None:
        return None
    from rdzv_plugins.elastic.failover import EpochVotes  # one endpoint does without it

    return EpochVotes(several, registration, port)


def _works(member: Member) -> bool:
    """Whether a member is not known to be done: it has workers, or is about to have some."""
    return (
        not member.leaving
        and not member.candidate
        and (member.finished_round == 0 or member.finished_round != member.store_ready_round)
    )


class PeerSet:
    """A context manager: which other members ``holds`` is true of, according to the watch. Thread-safe."""

    def __init__(self, session: Session, node_id: str, holds: Callable[[Member], bool], runtime: Runtime) -> None:
        self._session, self._node_id, self._holds = session, node_id, holds
        self._held: dict[str, str] = {}
        self._none = runtime.Event()

    def __enter__(self) -> PeerSet:
        timeout = request_timeout(self._session)
        self._watch = keys.list_and_watch(
            self._session, keys.MEMBERS, self._begin, self._seen, lambda request: request(timeout)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.cancel()

    def names(self) -> list[str]:
        """The names of these members, for messages."""
        return sorted(self._held.copy().values())

    def wait_gone(self, timeout: float) -> bool:
        """Wait until there are none left, at most ``timeout`` seconds; True if so."""
        return self._none.wait(timeout)

    def _begin(self, held: Sequence[KeyValue]) -> None:
        self._held.clear()
        self._seen([Event(kv.key, kv.value, kv.revision) for kv in held])

    def _seen(self, events: Sequence[Event]) -> None:
        for event in events:
            node = event.key.removeprefix(keys.MEMBERS)
            held = [] if event.value is None else [KeyValue(event.key, event.value, event.revision)]
            other = next(readable(Member, held), None)
            if node != self._node_id and other is not None and self._holds(other):
                self._held[node] = other.name
            else:
                self._held.pop(node, None)
        (self._none.clear if self._held else self._none.set)()
