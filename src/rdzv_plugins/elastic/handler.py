"""The elastic rendezvous of one node, over any ``CoordinationBackend``.

A node writes its own key and waits to be told its place; the leader, which is one of the nodes, decides
(``membership``). That takes two writes per node and round, however many nodes there are, and nothing while a round
lasts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from rdzv_plugins import errors
from rdzv_plugins.certificates import certificates_of
from rdzv_plugins.coordination import CoordinationBackend, KeyValue
from rdzv_plugins.elastic import keys, leaving
from rdzv_plugins.elastic.asking import ElasticQuestions
from rdzv_plugins.elastic.holding import RoundHolding
from rdzv_plugins.elastic.insisting import Background, patience
from rdzv_plugins.elastic.joining import Joining
from rdzv_plugins.elastic.keeping import Keeping
from rdzv_plugins.elastic.leading.placement import Order
from rdzv_plugins.elastic.leaving import Leaving
from rdzv_plugins.elastic.link import Link
from rdzv_plugins.elastic.liveness.leader_watch import WATCHERS, LeaderWatch
from rdzv_plugins.elastic.losses import CutOff, Losses
from rdzv_plugins.elastic.myself import Myself, new_member
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.elastic.reports import what_is_waited_for
from rdzv_plugins.elastic.round_store import RoundStore
from rdzv_plugins.elastic.settings import settings_of
from rdzv_plugins.elastic.view import Milestones, View, raise_if_ended
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
from rdzv_plugins.job_token import token_of
from rdzv_plugins.rounds.ends import parse_failure, to_json
from rdzv_plugins.runtime import SYSTEM, Runtime

logger = logging.getLogger(__name__)


class ElasticHandler(RendezvousHandler):
    """Called by the agent's main thread; ``note_failure`` may be called from any thread."""

    def __init__(
        self,
        backend: CoordinationBackend,
        request: Request,
        options: ElasticOptions,
        order: Order = lambda _: None,
        *,
        runtime: Runtime = SYSTEM,
        store: type[RoundStore] = RoundStore,
    ) -> None:
        """``store`` makes what serves and reaches the workers' stores."""
        self._backend, self._request, self._options = backend, request, options
        self._view = View(self._told, runtime)
        self._milestones = Milestones(self._view, runtime)
        me = new_member(request, runtime, serves=backend.hosts_service)
        self._link = Link(
            backend,
            request,
            options,
            self._view,
            order,
            me=me,
            settings=settings_of(request, backend.name, options, me.host, runtime),
            on_outage=lambda lasts: self._joining.note_outage(lasts),
            on_waits=self._share_outage,
            runtime=runtime,
        )
        self._self = Myself(me, self._link, runtime)
        self.questions = ElasticQuestions(self._link, me.node_id, runtime)
        self._view.on_asked = self.questions.answering.hear
        self._store = store(
            options,
            lambda *lost: self._cut_off.tell(*lost),
            runtime,
            token=token_of(request),
            run_id=request.run_id,
            several=request.max_nodes > 1,
            tls=certificates_of(request),
        )
        self._joining = Joining(
            request, options, self._view, self._link, self._self, self._store, self._milestones, runtime
        )
        self.holding: RoundHolding = RoundHolding(self._link, self._view, self._joining, options.ttl, runtime)
        self._store.session_lives = self.holding.session_lives
        if self._link.places is not None:
            from rdzv_plugins.elastic.places.carrying import Carrying

            self._joining.carry(Carrying(self._link.places, self._self), self._forget_leader)
        self._in_background = Background(request.run_id, runtime)
        self._cut_off = CutOff(self._view, self._joining, self._self, self._store, self._in_background, runtime)
        self._losses = Losses(
            request, options.ttl, self._view, self._link, self._self, self._joining, self._cut_off, runtime
        )
        self._leaving = Leaving(
            request, options.linger, self._view, self._link, self._self, self._joining, self._store, runtime
        )
        self._keeping = self._link.keeping = Keeping(self._view, self._joining, self._self, runtime)
        self._leader_watch = LeaderWatch(
            self._leader_gone, self._share_outage, runtime, until_proved=self._link.places is not None
        )
        self._restarts: dict[int, str] = {}
        self._working = False  # the agent has begun to ask about its workers
        self._saying = runtime.Lock()
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
        self._leaving.end(Outcome("done", "it was closed by a node"))

    def num_nodes_waiting(self) -> int:
        self._working = True
        self.raise_if_ended()
        return int(self.must_rejoin())

    def must_rejoin(self) -> bool:
        return self._joining.must_rejoin()

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
        """Count a restart in the service. Tells one that has lost its memory what this node knows."""
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
        self._milestones.tell_to(tell)

    def check_by(self, checks: Callable[[], Sequence[NodeCheck]]) -> bool:
        self._joining.check_by(checks)
        return True

    def waits_for(self) -> str:
        return what_is_waited_for(self._view, self._request, self._joining.behind)

    def note_done(self) -> None:
        """Note that this node's workers have all succeeded; it still waits for those of the others."""
        self._self.say(done=self._joining.round)

    def note_leaving(self, reason: str) -> None:
        """Note that this node is about to stop its workers and leave.

        The others' will fail, and that is not their fault.
        """
        self._leaving.note(reason)

    def peer_lost(self) -> bool:
        return self._losses.peer_lost()

    def working_peers(self) -> Sequence[str]:
        session = self._link.session
        if not self._joining.round:
            return ()
        try:
            there = leaving.others(session, self._self.me.node_id) if session is not None else None
        except (TimeoutError, errors.RdzvError) as error:
            logger.debug("could not ask who works: %s", error)
            there = None
        if there is None:  # an outage says nothing of the others, and ends by itself
            return ["nodes that nobody can ask for now"]
        return [each.name for each in there if each.reached == self._joining.round and leaving.works(each)]

    # a round that has lost a node is over: peer_lost tells it, and lost_peers has nothing to add

    def stay(self) -> None:
        self._leaving.stay()

    def leave(self, outcome: Outcome) -> None:
        """Tell the others. A node that serves something stays until they have left, at most ``linger`` seconds."""
        self._leaving.leave(outcome)

    def shutdown(self) -> bool:
        self._leader_watch.close()
        self._link.close()
        self._store.shutdown()
        self._joining.close()  # last: this node's own port stays open as long as the session may live
        return True

    def worker_env(self) -> Mapping[str, str]:
        return self._store.environment | {"RDZV_ROUND": str(self._joining.round)}

    def next_rendezvous(self) -> RoundInfo:
        """Join the next round and block until it is complete.

        Raises ``RendezvousFailed``, which names who is missing.
        """
        while True:
            self.raise_if_ended()
            self._working = False
            self._say_over()  # on the watch's thread it may come too late: the next round may begin first
            place = self._joining.next_place()
            self._end_vain_waits()  # it may have been over before this node had finished joining
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
            if not self._working:  # agents may be waiting in the store for a lost one: do not let them wait in vain
                self._in_background(f"close {over}", lambda: self._store.close(over))
        # a node that is refused has no session yet: it ends with an error of its own
        if view.notice.text != self._said_notice and self._link.session is not None:
            self._said_notice = view.notice.text
            logger.warning("%s", view.notice.text)
        place = view.assignment
        asked = view.probe.number > self._self.me.alive and not view.probe.answered
        if asked and place is not None and view.probe.round == place.round:
            self._in_background("alive", lambda: self._self.say(alive=view.probe.number))
        if not view.has_leader and not self._joining.active and self._joining.round:
            self._in_background("lead", self._link.campaign)

    def _watch_leader(self) -> None:
        """Have some nodes of the round watch the leader's process, and take the lead when it is gone. Any thread."""
        self._leader_watch.follow(self._watched_leader, self._self.me)

    def _leader_gone(self, held: KeyValue, gone: str, moves: int) -> None:
        self._in_background(f"take over {gone}", lambda: self._link.take_over(held, gone, moves))

    def _share_outage(self) -> None:
        """A node that this one watches waits for the service. Needs something of it at once, too: the outage is one."""
        self._in_background("share outage", self._self.say)

    def _forget_leader(self) -> None:
        """Start again: this node goes to another place, where what it has seen of others proves nothing."""
        self._leader_watch.start_again()  # first: anything reported before this counts at the place where it was seen
        self._link.moved()

    def _watched_leader(self) -> KeyValue | None:
        place = self._joining.place
        if self._link.places is not None:  # from the start: two nodes need the proof
            place = self._view.assignment or place
        return self._view.leader if place is not None and 0 <= place.rank < WATCHERS else None

    def _end_vain_waits(self) -> None:
        """End this agent's waits in its round's store if what they wait for can no longer come. Any thread."""
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
        """Say once why the round that this node was in is over. Any thread."""
        over = self._view.over
        with self._saying:
            if not self._said_over < over.number == self._joining.round:
                return
            self._said_over = over.number
        logger.info("round %d is over: %s", over.number, over.reason)
