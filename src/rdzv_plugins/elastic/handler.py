"""The elastic rendezvous of one node, over any ``CoordinationBackend``.

A node puts its own key and waits to be told its place; the leader, which is one of the nodes, decides
(``membership``). Per node and round that is two writes, whatever the number of nodes, and nothing while a round lasts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rdzv_plugins import errors
from rdzv_plugins.coordination import CoordinationBackend, KeyValue, Session
from rdzv_plugins.elastic import farewell, keys
from rdzv_plugins.elastic.ended import raise_if_ended
from rdzv_plugins.elastic.holding import RoundHolding
from rdzv_plugins.elastic.insisting import patience
from rdzv_plugins.elastic.joining import Joining
from rdzv_plugins.elastic.keeping import Keeping
from rdzv_plugins.elastic.keys import Finishing, Member, encode
from rdzv_plugins.elastic.leading.ranks import Order
from rdzv_plugins.elastic.link import Link
from rdzv_plugins.elastic.liveness.leader_watch import WATCHERS, LeaderWatch
from rdzv_plugins.elastic.milestones import Milestones
from rdzv_plugins.elastic.myself import Myself, new_member
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.elastic.questions import ElasticQuestions
from rdzv_plugins.elastic.reports import what_is_waited_for
from rdzv_plugins.elastic.round_store import RoundStore
from rdzv_plugins.elastic.settings import settings_of
from rdzv_plugins.elastic.view import View
from rdzv_plugins.interfaces import Failure, Outcome, Request, TellEvent
from rdzv_plugins.job_token import token_of
from rdzv_plugins.round_info import RoundInfo, StoreInfo
from rdzv_plugins.rounds.ends import parse_failure, to_json
from rdzv_plugins.rounds.joining_again import must_join_again

logger = logging.getLogger(__name__)

_BEFORE_WORKERS_S = 2.0
"""The most seconds that telling the others may take of those in which workers have to end."""
_NEWS_S = 2.0
"""The most seconds until the end of a round is heard of, while the service answers."""


class ElasticHandler:
    """A ``RendezvousHandler``. The agent's main thread calls it; ``note_failure`` any thread."""

    def __init__(
        self, backend: CoordinationBackend, request: Request, options: ElasticOptions, order: Order = lambda _: None
    ) -> None:
        self._backend, self._request, self._options = backend, request, options
        self._view = View(self._told)
        self._milestones = Milestones(self._view)
        me = new_member(request, serves=backend.hosts_service)
        self._link = Link(
            backend,
            request,
            options,
            self._view,
            order,
            me=me,
            settings=settings_of(request, backend.name, options, me.host),
        )
        self._self = Myself(me, self._link)
        self.questions = ElasticQuestions(self._link, me.node_id)
        self._view.on_asked = self.questions.answering.hear
        self._store = RoundStore(
            options, self._cut_off, token=token_of(request), run_id=request.run_id, several=request.max_nodes > 1
        )
        self._joining = Joining(request, options, self._view, self._link, self._self, self._store, self._milestones)
        self.holding = RoundHolding(self._link, self._view, self._joining, options.ttl)
        self._store.session_lives = self.holding.session_lives
        if self._link.places is not None:
            from rdzv_plugins.elastic.places.carrying import Carrying

            self._joining.carry(Carrying(self._link.places, self._self), self._forget_leader)
        self._keeping = self._link.keeping = Keeping(self._view, self._joining, self._self)
        self._leader_watch = LeaderWatch(self._leader_gone, until_proved=self._link.places is not None)
        self._restarts: dict[int, str] = {}
        self._working = False  # the agent has begun to ask after its workers
        self._saying = threading.Lock()
        self._said_over = 0
        self._said_notice = ""

    def get_backend(self) -> str:
        return self._backend.name

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_run_id(self) -> str:
        return self._request.run_id

    def is_closed(self) -> bool:
        return self._view.ended is not None

    def set_closed(self) -> None:
        self._end(Outcome("done", "it was closed by a node"))

    def num_nodes_waiting(self) -> int:
        self._working = True
        self.raise_if_ended()
        return int(self.must_rejoin())

    def must_rejoin(self) -> bool:
        cut_off = self._self.me.cut_off == self._joining.round > 0
        return self._joining.is_over or cut_off or self._link.opened != self._joining.opened

    def raise_if_ended(self) -> None:
        raise_if_ended(self._view, self._link.problem, self._request)

    def note_failure(self, failure: Failure) -> None:
        session = self._link.session
        if session is not None:
            key = f"{keys.FAILURES}{self._joining.round}"
            session.create(key, to_json(failure).encode(), timeout=patience(session))

    def first_failure(self) -> Failure | None:
        session = self._link.session
        if session is None:
            return None
        key = f"{keys.FAILURES}{self._joining.round}"
        held, _ = session.list(key, timeout=patience(session))
        return next((parse_failure(kv.value) for kv in held if kv.key == key), None)

    def count_restart(self, note: str) -> Sequence[str]:
        """See ``RestartAware``. A service that has lost its memory is told again what this node knows."""
        session, mine = self._link.session, self._restarts
        if session is None:
            raise errors.ConnectionLost("there is no session with the rendezvous now")
        mine.setdefault(self._joining.round, note)
        held, _ = session.list(keys.RESTARTS, timeout=patience(session))
        known = keys.restarts_of(held)
        for round_ in sorted(mine.keys() - known.keys()):
            _, kept = session.create(f"{keys.RESTARTS}{round_}", mine[round_].encode(), timeout=patience(session))
            known |= keys.restarts_of([kept])
        mine.update(known)
        return [note for _, note in sorted(mine.items())]

    def tell_events(self, tell: TellEvent) -> None:
        """See ``EventAware``."""
        self._milestones.tell_to(tell)

    def waits_for(self) -> str:
        """See ``WaitAware``."""
        return what_is_waited_for(self._view, self._request, self._joining.round)

    def note_done(self) -> None:
        """This node's workers have all succeeded; it still waits for those of the others."""
        self._self.say(done=self._joining.round)

    def note_leaving(self, reason: str) -> None:
        """This node is about to stop its workers and go: theirs will fail, and that is not their fault."""
        self._self.say_once(_BEFORE_WORKERS_S, leaving="lost", reason=reason)

    def peer_lost(self) -> bool:
        """A worker has failed here: is it because a node was lost? Waits at most twice the time to live.

        Every node of the round is asked for a sign of life; who does not give one is lost when its session ends.
        That is within its time to live; twice, for a service that elects a new leader of its own in between.
        While the service does not answer nobody can say: then it is asked again, until the outage has lasted too long.
        """
        if self._joining.place is None or self._joining.place.world == 1:
            return False
        while (lost := self._ask_all()) is None:
            logger.info("a worker has failed, and the rendezvous does not answer: waiting to hear why")
        return lost

    def _ask_all(self) -> bool | None:
        """Has a node been lost? None: the service has not answered, or does not know what it was asked any more."""
        self._wait_confirmed()
        session = self._link.session
        deadline = time.monotonic() + 2 * (session.ttl if session is not None else self._options.ttl) + 1
        asked = self._view.probe.number + 1
        if not self.must_rejoin():  # else this is an answer, and another session's nodes are not to be asked
            self._self.say_once(deadline - time.monotonic(), probe=asked)
        while True:
            seen = self._view.version
            self.raise_if_ended()
            if self.must_rejoin():
                return self._view.round.cause != "asked" or self._link.opened != self._joining.opened
            if self._joining.is_unconfirmed or self._link.session not in (session, None):
                return None
            probe = self._view.probe
            answered = probe.answered and probe.number >= asked
            if answered or time.monotonic() >= deadline:
                if not answered and self._link.is_out:
                    return None
                return self._needs_store() and self._store.is_cut_off()  # which its proxy is about to say
            self._view.wait(seen, deadline - time.monotonic())

    def _wait_confirmed(self) -> None:
        """A service without memory knows nobody of the round before all have come back to it."""
        while True:
            seen = self._view.version
            self.raise_if_ended()
            if not self._joining.is_unconfirmed or self.must_rejoin():
                return
            self._view.wait(seen, _NEWS_S)

    def working_peers(self) -> Sequence[str]:
        session = self._link.session
        if session is None or not self._joining.round:
            return ()
        there = farewell.others(session, self._self.me.node_id)
        return [each.name for each in there if each.reached == self._joining.round and farewell.works(each)]

    def lost_peers(self) -> Sequence[str]:
        return ()  # a round that has lost a node is over: see peer_lost

    def stay(self) -> None:
        """See ``PeerAware``. Those who serve nothing return at once."""
        if not (self._link.hosts_service or self._serves_others()):
            return
        try:
            while (session := self._link.wait_session()) is not None:
                self._say_leaving(session, Outcome("done"))
                farewell.stay(session, self._self.me.node_id, self._needed_by, lambda: self._goes_on(session))
                if session is self._link.session:
                    return
        except (errors.ConnectionLost, TimeoutError) as error:
            logger.debug("could not wait for the other nodes: %s", error)

    def leave(self, outcome: Outcome) -> None:
        """Tell the others. Who serves something stays until they have left, at most ``linger`` seconds."""
        session = self._link.session
        if session is None:
            return
        try:
            ends_all = self._link.hosts_service and self._link.places is None  # else another place serves from now on
            if outcome.end == "failed" or (outcome.end == "lost" and ends_all):
                self._end(outcome)
            self._say_leaving(session, outcome)
            if outcome.end == "lost":
                self._wait_declared()
            done = outcome.end == "done"
            if (self._link.hosts_service and (done or ends_all)) or (done and self._serves_others()):
                farewell.wait_until_alone(session, self._self.me, self._options.linger)
        except (errors.ConnectionLost, TimeoutError) as error:
            logger.debug("could not tell the other nodes how this one ended: %s", error)

    def shutdown(self) -> bool:
        self._leader_watch.close()
        self._link.close()
        self._store.shutdown()
        self._joining.close()  # last: while the session may live, so does this node's own port
        return True

    def worker_env(self) -> Mapping[str, str]:
        return self._store.environment | {"RDZV_ROUND": str(self._joining.round)}

    def next_rendezvous(self) -> RoundInfo:
        """Join the next round and block until it is complete. Raises ``RendezvousFailed``, with who is missing."""
        while True:
            self.raise_if_ended()
            self._working = False
            self._say_over()  # on the watch's thread it may come too late: the next round may begin before its turn
            place = self._joining.next_place()
            self._end_vain_waits()  # it may have been over before this node was no longer joining
            try:
                where = self._store.open(place, self._request.local_addr)
            except (errors.StoreError, errors.EndpointUnreachable, errors.RunIdMismatch) as error:
                if not must_join_again(self):
                    raise self._no_way(error) from error
                logger.info("round %d was over before this node's proxy was connected (%s)", place.round, error)
                continue
            self._watch_leader()
            return RoundInfo(self._store.agents, place.rank, place.world, StoreInfo(where.host, where.port))

    def _no_way(self, error: Exception) -> errors.RendezvousFailed:
        run = f"run {self._request.run_id!r}"
        if isinstance(error, errors.EndpointUnreachable):
            return errors.EndpointUnreachable(f"{run}: {error}", remedy=error.remedy)
        return errors.RendezvousFailed(
            f"{run}: this node's proxy has no way to the store: {error}",
            remedy="The key trunk/N comes from node N, which is to connect this one (--rdzv-conf fanout). "
            "Look at that node's output.",
        )

    def _told(self) -> None:
        """Do at once what cannot wait until the agent asks. Called on the watch's thread."""
        self._milestones.hear()
        self.holding.tell()
        self._keeping.hear()
        view = self._view
        self._watch_leader()
        self._end_vain_waits()
        over = view.over.number
        if over == self._joining.round > 0 and not self._joining.active:
            self._say_over()
            if not self._working:  # agents may wait in the store for one that was lost: they are not to wait in vain
                self._in_background(lambda: self._store.close(over))
        if view.notice.text != self._said_notice:
            self._said_notice = view.notice.text
            logger.warning("%s", view.notice.text)
        place = view.assignment
        asked = view.probe.number > self._self.me.alive and not view.probe.answered
        if asked and place is not None and view.probe.round == place.round:
            self._in_background(lambda: self._self.say(alive=view.probe.number))
        if not view.has_leader and not self._joining.active and self._joining.round:
            self._in_background(self._link.campaign)

    def _watch_leader(self) -> None:
        """Some nodes of the round watch whether the leader's process lives, and lead when it is gone. Any thread."""
        self._leader_watch.follow(self._watched_leader, self._self.me)

    def _leader_gone(self, held: KeyValue, gone: str, moves: int) -> None:
        self._in_background(lambda: self._link.take_over(held, gone, moves))

    def _forget_leader(self) -> None:
        """This node goes to another place, where what it has seen of others proves nothing."""
        self._leader_watch.start_again()  # first: what it tells until then counts where it was seen
        self._link.moved()

    def _watched_leader(self) -> KeyValue | None:
        place = self._joining.place
        if self._link.places is not None:  # from the beginning: two nodes need the proof
            place = self._view.assignment or place
        return self._view.leader if place is not None and 0 <= place.rank < WATCHERS else None

    def _end_vain_waits(self) -> None:
        """End this agent's waits in its round's store if what they wait for cannot come any more. Any thread."""
        if not self._joining.active and (reason := self._why_in_vain()):
            self._store.interrupt(self._joining.round, reason)

    def _why_in_vain(self) -> str:
        declared, ended, round_ = self._view.round, self._view.ended, self._joining.round
        if self._link.problem is not None:
            return str(self._link.problem)
        if ended is not None and ended.end != "done":
            return f"the job has ended: {ended.reason}"
        if not self.must_rejoin():
            return ""
        if declared.number == round_ and declared.state == "over":
            return f"round {round_} is over: {declared.reason}"
        if declared.number > round_:
            return f"round {declared.number} has begun without this node"
        return f"this node has to leave round {round_}: it is cut off from the store, or has a new session"

    def _say_over(self) -> None:
        """Why the round in which this node was is over, once. Any thread."""
        over = self._view.over
        with self._saying:
            if not self._said_over < over.number == self._joining.round:
                return
            self._said_over = over.number
        logger.info("round %d is over: %s", over.number, over.reason)

    def _cut_off(self, round_: int, why: str) -> None:
        """Tell the others that the proxy, on whose thread this is, has lost the store of ``round_`` and its workers."""
        if round_ != self._joining.round or self.must_rejoin():
            return  # as it is to be
        reason = f"is cut off from the workers' store: {why}"
        if not self._needs_store():
            logger.debug("this node, or another one, is done, and %s", reason)
        elif self._self.say_cut_off(round_, reason):
            self._in_background(lambda: self._report_cut_off(round_, why))

    def _needs_store(self) -> bool:
        """Whether its workers still need the store: no node of the round is done, and the job has not ended."""
        me, view, round_ = self._self.me, self._view, self._joining.round
        return not me.leaving and round_ not in (me.done, view.finishing.round) and view.ended is None

    def _report_cut_off(self, round_: int, why: str) -> None:
        """Unless the round was over before that, which this node had not heard yet."""
        deadline = time.monotonic() + _NEWS_S
        while time.monotonic() < deadline:
            seen, declared = self._view.version, self._view.round
            if declared.number > round_ or declared.state == "over":
                if why not in declared.reason:
                    return
                break
            self._view.wait(seen, deadline - time.monotonic())
        logger.warning(
            "this node is cut off from the workers' store of round %d: %s; its workers are stopped and join a new one",
            round_,
            why,
        )

    def _in_background(self, task: Any) -> None:
        def run() -> None:
            try:
                task()
            except (errors.ConnectionLost, TimeoutError) as error:
                logger.debug("in the background: %s", error)
            except errors.RdzvError as error:
                logger.warning("run %s: %s", self._request.run_id, error)

        threading.Thread(target=run, name="rdzv-elastic", daemon=True).start()

    def _end(self, outcome: Outcome) -> None:
        session = self._link.session
        if session is not None:
            session.create(keys.END, to_json(outcome).encode(), timeout=patience(session))

    def _say_leaving(self, session: Session, outcome: Outcome) -> None:
        if self._self.me.leaving == outcome.end:
            return  # said already
        if outcome.end == "done" and self._joining.round:
            finishing = Finishing(self._joining.round, self._self.me.name)
            session.put({keys.FINISHING: encode(finishing)}, timeout=patience(session))
        quick = outcome.end == "lost"  # nobody waits for a word of that
        self._self.say_once(
            _BEFORE_WORKERS_S if quick else patience(session), leaving=outcome.end, reason=outcome.reason
        )

    def _wait_declared(self) -> None:
        """Who leads declares the round over before it goes: its successor would see only that it has gone, not why."""
        deadline = time.monotonic() + _BEFORE_WORKERS_S
        while self._link.leads and time.monotonic() < deadline:
            seen, declared = self._view.version, self._view.round
            if declared.number != self._joining.round or declared.state == "over":
                return
            self._view.wait(seen, deadline - time.monotonic())

    def _needed_by(self, other: Member) -> bool:
        """Who serves the endpoint is needed by all, who serves a round by its nodes."""
        return farewell.works(other) and (self._link.hosts_service or other.reached == self._joining.round)

    def _goes_on(self, session: Session | None) -> bool:
        """While this node stays: it is of use as long as its session lives. Raises the reason if the job has failed."""
        raise_if_ended(self._view, None, self._request)
        over = self._view.round.number > self._joining.round  # then only the endpoint is needed
        return session is not None and session is self._link.session and (self._link.hosts_service or not over)

    def _serves_others(self) -> bool:
        """The workers' store, or the proxies of other nodes."""
        place = self._joining.place
        return place is not None and place.world > 1 and (place.rank == 0 or self._store.is_parent)
