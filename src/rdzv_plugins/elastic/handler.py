"""The elastic rendezvous of one node, over any ``CoordinationBackend``.

A node puts its own key and waits to be told its place; the leader, which is one of the nodes, decides
(``membership``). Per node and round that is two writes, whatever the number of nodes, and nothing while a round lasts.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

from rdzv_plugins import errors
from rdzv_plugins.coordination import CoordinationBackend, Session
from rdzv_plugins.elastic import farewell, keys
from rdzv_plugins.elastic.elastic_options import ElasticOptions
from rdzv_plugins.elastic.ended import ended_error, raise_if_not_needed
from rdzv_plugins.elastic.insisting import patience
from rdzv_plugins.elastic.keys import Assignment, Finishing, Member, Round, encode
from rdzv_plugins.elastic.link import Link
from rdzv_plugins.elastic.machine_id import machine_id
from rdzv_plugins.elastic.myself import Myself
from rdzv_plugins.elastic.rank_table import log_rank_table
from rdzv_plugins.elastic.ranks import Order
from rdzv_plugins.elastic.reports import Reports, kind_of_waiting, remedy_for_timeout, what_is_waited_for
from rdzv_plugins.elastic.round_store import RoundStore
from rdzv_plugins.elastic.settings_check import settings_of
from rdzv_plugins.elastic.torch_errors import as_torch
from rdzv_plugins.elastic.view import View
from rdzv_plugins.endpoints import is_loopback_address
from rdzv_plugins.interfaces import Failure, Outcome, Request
from rdzv_plugins.kvstore.ends import parse_failure, to_json
from rdzv_plugins.kvstore.reach import default_address

logger = logging.getLogger(__name__)

_BEFORE_WORKERS_S = 2.0
"""What telling the others may take from the time that workers have to end in."""


class ElasticHandler:
    """A ``RendezvousHandler``. The agent's main thread calls it; ``note_failure`` any thread."""

    def __init__(
        self, backend: CoordinationBackend, request: Request, options: ElasticOptions, order: Order = lambda _: None
    ) -> None:
        self._backend, self._request, self._options = backend, request, options
        self._view = View(self._told)
        host = socket.gethostname()
        me = Member(
            node_id=uuid.uuid4().hex,
            host=host,
            machine=machine_id(),
            pid=os.getpid(),
            address="",
            public="",
            nproc=request.nproc_per_node,
            node_rank=request.node_rank,
            serves=backend.hosts_service,
        )
        self._link = Link(
            backend,
            request,
            options,
            self._view,
            order,
            node_id=me.node_id,
            settings=settings_of(request, backend.name, options.store, host),
        )
        self._self = Myself(me, self._link)
        self._store = RoundStore(options)
        self._joining = False
        self._joined_in = 0  # which of the link's sessions this node's round belongs to
        self._round = 0
        self._place: Assignment | None = None
        self._working = False  # the agent has begun to ask after its workers
        self._said_over = 0

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
        declared = self._view.round
        over = declared.number == self._round and declared.state == "over"
        return over or declared.number > self._round or self._link.opened != self._joined_in

    def raise_if_ended(self) -> None:
        ended = self._view.ended
        if ended is not None and ended.end != "done":
            raise as_torch(ended_error(ended, self._request))
        if self._link.problem is not None:
            raise as_torch(self._link.problem)

    def note_failure(self, failure: Failure) -> None:
        session = self._link.session
        if session is not None:
            session.create(f"{keys.FAILURES}{self._round}", to_json(failure).encode(), timeout=patience(session))

    def first_failure(self) -> Failure | None:
        session = self._link.session
        if session is None:
            return None
        key = f"{keys.FAILURES}{self._round}"
        held, _ = session.list(key, timeout=patience(session))
        return next((parse_failure(kv.value) for kv in held if kv.key == key), None)

    def note_done(self) -> None:
        """This node's workers have all succeeded; it still waits for those of the others."""
        self._self.say(done=self._round)

    def note_leaving(self, reason: str) -> None:
        """This node is about to stop its workers and go: theirs will fail, and that is not their fault."""
        self._self.say_once(_BEFORE_WORKERS_S, leaving="lost", reason=reason)

    def peer_lost(self) -> bool:
        """A worker has failed here: is it because a node was lost? Waits at most twice the time to live.

        Every node of the round is asked for a sign of life; who does not give one is lost when its session ends.
        That is within its time to live; twice, for a service that elects a new leader of its own in between.
        """
        if self._place is None or self._place.world == 1:
            return False
        session = self._link.session
        deadline = time.monotonic() + 2 * (session.ttl if session is not None else self._options.ttl) + 1
        asked = self._view.probe.number + 1
        self._self.say_once(deadline - time.monotonic(), probe=asked)
        while True:
            seen = self._view.version
            self.raise_if_ended()
            if self.must_rejoin():
                return self._view.round.cause != "asked" or self._link.opened != self._joined_in
            probe = self._view.probe
            if (probe.answered and probe.number >= asked) or time.monotonic() >= deadline:
                return False
            self._view.wait(seen, deadline - time.monotonic())

    def leave(self, outcome: Outcome) -> None:
        """Tell the others. Who serves something stays until they have left, at most ``linger`` seconds."""
        session = self._link.session
        if session is None:
            return
        try:
            if outcome.end == "failed" or (outcome.end == "lost" and self._link.hosts_service):
                self._end(outcome)
            if outcome.end == "done" and self._round:
                finishing = Finishing(self._round, self._self.me.name)
                session.put({keys.FINISHING: encode(finishing)}, timeout=patience(session))
            quick = outcome.end == "lost"  # nobody waits for a word of that
            self._self.say_once(
                _BEFORE_WORKERS_S if quick else patience(session), leaving=outcome.end, reason=outcome.reason
            )
            if self._link.hosts_service or (outcome.end == "done" and self._serves_workers()):
                farewell.wait_until_alone(session, self._self.me, self._options.linger)
        except (errors.ConnectionLost, TimeoutError) as error:
            logger.debug("could not tell the other nodes how this one ended: %s", error)

    def shutdown(self) -> bool:
        self._link.close()
        self._store.shutdown()
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round and block until it is complete. Raises torch's rendezvous errors, with who is missing."""
        self.raise_if_ended()
        self._store.leave()
        self._store.close(self._round)  # workers of the old round are cut off
        self._working = False
        facts = functools.partial(what_is_waited_for, self._view, self._request, self._round)
        reports = Reports(facts, live=self._request.max_nodes > 1)
        self._joining = True
        try:
            place = self._join(time.monotonic() + self._options.join_seconds, reports, facts)
        except errors.RendezvousFailed as error:
            raise as_torch(error) from error.__cause__
        finally:
            self._joining = False
            reports.end()
        store = RendezvousStoreInfo(place.master_addr, place.master_port)
        return RendezvousInfo(self._store.agents, place.rank, place.world, store)

    def _join(self, deadline: float, reports: Reports, facts: Callable[[], str]) -> Assignment:
        if self._link.opened == 0:
            self._link.open(self._options.join_seconds)
        fresh: dict[str, Any] = {"after": self._round, "store": None, "reached": 0, "unreachable": "", "done": 0}
        if self._joined_in == self._link.opened:
            self._self.say(**fresh)
        else:
            self._self.change(**fresh)  # written with the address, which the new session tells
        while True:
            seen = self._view.version
            self.raise_if_ended()
            raise_if_not_needed(self._view, self._request, self._round)
            session = self._link.session
            if session is not None:
                try:
                    place = self._step(session)
                except (errors.ConnectionLost, TimeoutError) as error:  # the link tries again, or finds it lost
                    logger.debug("while joining: %s", error)
                    place = None
                if place is not None:
                    return place
            now, kind = time.monotonic(), kind_of_waiting(self._view, self._round)
            if kind == "spare":  # needed when a node is lost, and until then in nobody's way
                deadline = now + self._options.join_seconds
            if now >= deadline:
                raise errors.RendezvousTimeout(
                    f"{facts()}, after {self._options.join_seconds:g} s", remedy=remedy_for_timeout(self._request)
                )
            reports.say(kind)
            self._view.wait(seen, min(deadline, reports.next_at, self._store.retry_at) - now)

    def _step(self, session: Session) -> Assignment | None:
        """Do what this node has been told; its place once the round is complete."""
        if self._joined_in != self._link.opened:  # a new session: nobody knows of this node there
            self._joined_in = self._link.opened
            address = self._request.local_addr or session.local_addr
            public = default_address() if is_loopback_address(address) else address
            self._self.say(address=address, public=public, dialled=session.remote_addr)
        if not self._view.has_leader:
            self._link.campaign()
        place, declared = self._view.assignment, self._view.round
        if place is not None and place.refused:
            raise errors.SettingsDiffer(
                f"this node cannot take part in run {self._request.run_id!r}: {place.refused}",
                remedy="Give every node a --node-rank of its own.",
            )
        if place is None or place.round <= self._round:
            return None
        if not place.master_addr:
            if self._self.me.store is None or self._self.me.store[0] != place.round:
                address = self._self.me.address if self._request.local_addr else place.publish or self._self.me.address
                self._self.say(store=self._store.serve(place, address))
        elif self._self.me.reached != place.round:
            unreachable = self._store.reach(place)
            if unreachable is not None:
                self._self.say(reached=place.round, unreachable=unreachable)
        elif declared.number == place.round and declared.state in ("complete", "over"):
            self._round, self._place = place.round, place
            if declared.state == "complete":
                if place.rank == 0:
                    log_rank_table(session, place)
                return place
            self._store.close(self._round)
            self._self.say(after=self._round, store=None)  # it was over before this node had heard that it was complete
        return None

    def _told(self) -> None:
        """On the watch's thread: what cannot wait until the agent asks."""
        view = self._view
        declared = view.round
        if declared.state == "over" and declared.number == self._round and not self._joining:
            self._hear_over(declared)
        place = view.assignment
        asked = view.probe.number > self._self.me.alive and not view.probe.answered
        if asked and place is not None and view.probe.round == place.round:
            self._in_background(lambda: self._self.say(alive=view.probe.number))
        if not view.has_leader and not self._joining and self._round:
            self._in_background(self._link.campaign)

    def _hear_over(self, declared: Round) -> None:
        if self._said_over < declared.number:
            self._said_over = declared.number
            logger.info("round %d is over: %s", declared.number, declared.reason)
        if not self._working:  # agents may wait in the store for one that was lost: they are not to wait in vain
            self._in_background(lambda: self._store.close(declared.number))

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

    def _serves_workers(self) -> bool:
        return self._place is not None and self._place.rank == 0 and self._place.world > 1
