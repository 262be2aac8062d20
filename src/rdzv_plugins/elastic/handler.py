"""The elastic rendezvous of one node, over any ``CoordinationBackend``.

A node puts its own key and waits to be told its place; the leader, which is one of the nodes, decides
(``membership``). Per node and round that is two writes, whatever the number of nodes, and nothing while a round lasts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

from rdzv_plugins import errors
from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.elastic import farewell, keys
from rdzv_plugins.elastic.elastic_options import ElasticOptions
from rdzv_plugins.elastic.ended import raise_if_ended
from rdzv_plugins.elastic.insisting import patience
from rdzv_plugins.elastic.joining import Joining
from rdzv_plugins.elastic.keys import Finishing, Round, encode
from rdzv_plugins.elastic.link import Link
from rdzv_plugins.elastic.myself import Myself, new_member
from rdzv_plugins.elastic.ranks import Order
from rdzv_plugins.elastic.round_store import RoundStore
from rdzv_plugins.elastic.settings_check import settings_of
from rdzv_plugins.elastic.torch_errors import as_torch
from rdzv_plugins.elastic.view import View
from rdzv_plugins.interfaces import Failure, Outcome, Request
from rdzv_plugins.kvstore.ends import parse_failure, to_json

logger = logging.getLogger(__name__)

_BEFORE_WORKERS_S = 2.0
"""What telling the others may take from the time that workers have to end in."""
_NEWS_S = 2.0
"""What hearing of a round's end takes at most, while the service answers."""


class ElasticHandler:
    """A ``RendezvousHandler``. The agent's main thread calls it; ``note_failure`` any thread."""

    def __init__(
        self, backend: CoordinationBackend, request: Request, options: ElasticOptions, order: Order = lambda _: None
    ) -> None:
        self._backend, self._request, self._options = backend, request, options
        self._view = View(self._told)
        me = new_member(request, serves=backend.hosts_service)
        self._link = Link(
            backend,
            request,
            options,
            self._view,
            order,
            node_id=me.node_id,
            settings=settings_of(request, backend.name, options.store, me.host, options.fanout),
        )
        self._self = Myself(me, self._link)
        self._store = RoundStore(options, self._cut_off)
        self._joining = Joining(request, options, self._view, self._link, self._self, self._store)
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
        over = declared.number == self._joining.round and declared.state == "over"
        cut_off = self._self.me.cut_off == self._joining.round > 0
        return over or cut_off or declared.number > self._joining.round or self._link.opened != self._joining.opened

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
        """
        if self._joining.place is None or self._joining.place.world == 1:
            return False
        session = self._link.session
        deadline = time.monotonic() + 2 * (session.ttl if session is not None else self._options.ttl) + 1
        asked = self._view.probe.number + 1
        self._self.say_once(deadline - time.monotonic(), probe=asked)
        while True:
            seen = self._view.version
            self.raise_if_ended()
            if self.must_rejoin():
                return self._view.round.cause != "asked" or self._link.opened != self._joining.opened
            probe = self._view.probe
            if (probe.answered and probe.number >= asked) or time.monotonic() >= deadline:
                return self._needs_store() and self._store.is_cut_off()  # which its proxy is about to say
            self._view.wait(seen, deadline - time.monotonic())

    def leave(self, outcome: Outcome) -> None:
        """Tell the others. Who serves something stays until they have left, at most ``linger`` seconds."""
        session = self._link.session
        if session is None:
            return
        try:
            if outcome.end == "failed" or (outcome.end == "lost" and self._link.hosts_service):
                self._end(outcome)
            if outcome.end == "done" and self._joining.round:
                finishing = Finishing(self._joining.round, self._self.me.name)
                session.put({keys.FINISHING: encode(finishing)}, timeout=patience(session))
            quick = outcome.end == "lost"  # nobody waits for a word of that
            self._self.say_once(
                _BEFORE_WORKERS_S if quick else patience(session), leaving=outcome.end, reason=outcome.reason
            )
            if self._link.hosts_service or (outcome.end == "done" and self._serves_others()):
                farewell.wait_until_alone(session, self._self.me, self._options.linger)
        except (errors.ConnectionLost, TimeoutError) as error:
            logger.debug("could not tell the other nodes how this one ended: %s", error)

    def shutdown(self) -> bool:
        self._link.close()
        self._store.shutdown()
        return True

    def worker_env(self) -> Mapping[str, str]:
        return self._store.environment

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round and block until it is complete. Raises torch's rendezvous errors, with who is missing."""
        while True:
            self.raise_if_ended()
            self._working = False
            try:
                place = self._joining.next_place()
            except errors.RendezvousFailed as error:
                raise as_torch(error) from error.__cause__
            try:
                where = self._store.open(place, self._request.local_addr, self.must_rejoin)
            except (DistError, errors.EndpointUnreachable) as error:
                if not (self.peer_lost() or self.must_rejoin()):
                    raise self._no_way(error) from error
                logger.info("round %d was over before this node's proxy was connected (%s)", place.round, error)
                continue
            except errors.RendezvousFailed as error:
                raise as_torch(error) from error.__cause__
            return RendezvousInfo(
                self._store.agents, place.rank, place.world, RendezvousStoreInfo(where.host, where.port)
            )

    def _no_way(self, error: Exception) -> errors.RendezvousFailed:
        run = f"run {self._request.run_id!r}"
        if isinstance(error, errors.EndpointUnreachable):
            return as_torch(errors.EndpointUnreachable(f"{run}: {error}", remedy=error.remedy))
        return as_torch(
            errors.RendezvousFailed(
                f"{run}: this node's proxy has no way to the store: {error}",
                remedy="The key trunk/N comes from node N, which is to connect this one (--rdzv-conf fanout). "
                "Look at that node's output.",
            )
        )

    def _told(self) -> None:
        """On the watch's thread: what cannot wait until the agent asks."""
        view = self._view
        declared = view.round
        if declared.state == "over" and declared.number == self._joining.round and not self._joining.active:
            self._hear_over(declared)
        place = view.assignment
        asked = view.probe.number > self._self.me.alive and not view.probe.answered
        if asked and place is not None and view.probe.round == place.round:
            self._in_background(lambda: self._self.say(alive=view.probe.number))
        if not view.has_leader and not self._joining.active and self._joining.round:
            self._in_background(self._link.campaign)

    def _hear_over(self, declared: Round) -> None:
        if self._said_over < declared.number:
            self._said_over = declared.number
            logger.info("round %d is over: %s", declared.number, declared.reason)
        if not self._working:  # agents may wait in the store for one that was lost: they are not to wait in vain
            self._in_background(lambda: self._store.close(declared.number))

    def _cut_off(self, round_: int, why: str) -> None:
        """On the proxy's thread: it has lost the store of ``round_``, and cuts its workers off."""
        if round_ != self._joining.round or self.must_rejoin():
            return  # as it is to be
        reason = f"is cut off from the workers' store: {why}"
        if not self._needs_store():
            logger.debug("this node, or another one, is done, and %s", reason)
        elif self._self.say_cut_off(round_, reason):
            self._in_background(lambda: self._report_cut_off(round_, why))

    def _needs_store(self) -> bool:
        """Its workers cannot do without: no node of the round is done yet, and the job has not ended."""
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

    def _serves_others(self) -> bool:
        """The workers' store, or the proxies of other nodes."""
        place = self._joining.place
        return place is not None and place.world > 1 and (place.rank == 0 or self._store.is_parent)
