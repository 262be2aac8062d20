"""How a node gets into a round: it says that it is waiting, does what the leader tells it, and learns its place.

A node that wants to enter a round that is at work without it dials that round's workers' store first. Only once it has
reached the store is the round ended for its sake: a node that is behind a firewall or stands still costs the working
nodes nothing. It tries again by itself, with growing pauses, and only speaks up when something has changed.

People are told whom a node waits for, by one live line on a terminal or a line every ten seconds in a log, and once the
round is complete, which node has which rank.
"""

from __future__ import annotations

import itertools
import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rdzv_plugins import errors
from rdzv_plugins.coordination import Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.coordinator.placement import in_words
from rdzv_plugins.elastic.current_round import NodeContext
from rdzv_plugins.elastic.election import Election
from rdzv_plugins.elastic.keys import (
    MOST_CHECKS,
    MOST_VOTES,
    Assignment,
    CheckReport,
    Round,
    readable,
    vote_of,
    votes_reached,
)
from rdzv_plugins.elastic.liveness_probe import name_of
from rdzv_plugins.elastic.node_session import WatchCache
from rdzv_plugins.elastic.retry import request_timeout
from rdzv_plugins.endpoints import Endpoint, is_loopback_address, is_only_local
from rdzv_plugins.interfaces import NodeCheck, Request, RoundEvent
from rdzv_plugins.kvstore.sockets.reach import default_address
from rdzv_plugins.plain_text import printable, some
from rdzv_plugins.rounds.ends import ended_error
from rdzv_plugins.rounds.settings_check import wanted
from rdzv_plugins.runtime import Runtime
from rdzv_plugins.timing import EVERY_S, growing

logger = logging.getLogger(__name__)

_ATTEMPT_S = 1.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 30.0


class MemberJoin:
    """Takes this node into a round. Called by one thread."""

    def __init__(self, node: NodeContext, election: Election) -> None:
        self._request, self._options, self._cache, self._runtime = node.request, node.options, node.cache, node.runtime
        self._registration, self._round, self._store = node.registration, node.round, node.store
        self._election, self._port, self._votes = election, node.port, node.votes
        self._probed_round = 0  # the round that is at work without this node, whose store it dials
        self._give_up_at = self._next_probe = 0.0
        self._late_pauses: Iterator[float] = iter(())
        self._checks: Callable[[], Sequence[NodeCheck]] | None = None
        self._checked = 0  # the newest round that was over when this node tested itself
        self._is_spare = False  # true once this node has waited as a spare while a round worked
        self._retry_at = math.inf
        """When to take the next step if nothing is heard before, in the monotonic clock's seconds."""

    def next_place(self) -> Assignment:
        """Leave the last round and block until another is complete. ``RendezvousFailed`` names who is missing."""
        reports = ProgressReporter(self.facts, live=self._request.max_nodes > 1, runtime=self._runtime)
        try:
            with self._round.joining():
                return self._join(self._runtime.monotonic() + self._options.join_seconds, reports)
        finally:
            reports.end()

    def _join(self, deadline: float, reports: ProgressReporter) -> Assignment:
        if self._registration.opened == 0:
            self._registration.open(self._options.join_seconds)
        fresh: dict[str, Any] = {
            "last_round": self._round.number,
            "store": None,
            "store_ready_round": 0,
            "unreachable": "",
            "finished_round": 0,
        }
        fresh |= {"candidate": False, "keeps": None, "reason": ""} | self._tested()
        if not self._round.has_new_session:
            self._registration.publish(**fresh)
        else:
            # no worker's fault: whoever's workers fail with it uses no restart
            if self._round.number and not self._round.is_over:
                fresh |= {"cut_off_round": self._round.number, "reason": "has lost its session with the rendezvous"}
            self._registration.update(**fresh)  # written with the address, which the new session provides
        # workers of the old round are cut off once the other nodes can know why
        self._store.leave()
        self._store.close(self._round.number)
        self._is_spare = False
        while True:
            seen = self._cache.version
            self._registration.raise_if_over()
            raise_if_not_needed(
                self._cache, self._request, self._round.behind, spare=self._is_spare or self._round.number > 0
            )
            # a dial that failed in an earlier step is over
            session, self._retry_at = self._registration.session, math.inf
            if session is not None:
                try:
                    place = self._step(session)
                # another session is opened, or the service is lost
                except (errors.ConnectionLost, TimeoutError) as error:
                    logger.debug("while joining: %s", error)
                    place = None
                if place is not None:
                    return place
            now, kind = self._runtime.monotonic(), self._kind_of_waiting()
            if kind in ("spare", "left out"):  # needed when a node is lost, and in nobody's way until then
                deadline = now + self._options.join_seconds
                self._is_spare = self._is_spare or not is_finishing(self._cache)
            # nobody who is missing is to blame for an outage, and it has an end
            if now >= deadline and self._registration.is_out:
                deadline = now + self._options.outage_timeout
            if now >= deadline:
                raise errors.RendezvousTimeout(
                    f"{self.facts()}, after {self._options.join_seconds:g} s", remedy=_remedy_for_timeout(self._request)
                )
            reports.report(kind)
            self._cache.wait(seen, min(deadline, reports.next_at, self._retry_at) - now)

    def _kind_of_waiting(self) -> str:
        """``left out``, ``spare`` or ``joined``; empty if this node does not wait."""
        cache = self._cache
        if cache.assignment is not None and cache.assignment.left_out:
            return "left out"
        if cache.round.state == "complete" and cache.round.number > self._round.behind:
            return "spare"
        return "joined" if cache.progress else ""

    def facts(self) -> str:
        """Who is there, as far as this node has been told."""
        cache, request = self._cache, self._request
        declared, where = cache.round, f"run {request.run_id!r}{request.at_endpoint}"
        kind, place = self._kind_of_waiting(), cache.assignment
        if kind == "left out" and place is not None:
            return f"{where}: this node is left out for now: {place.left_out}"
        if kind == "spare":
            why = f": {place.spare}" if place is not None and place.spare else ""
            works = f"round {declared.number} is complete with its {declared.world} nodes"
            return f"{where}: {works}; this node is a spare{why}"
        needed = wanted(request.min_nodes, request.max_nodes)
        return f"{where}: {cache.progress or f'this node has joined, {needed} nodes are wanted'}"

    def check_by(self, checks: Callable[[], Sequence[NodeCheck]]) -> None:
        """With --preflight: have this node test itself like this before each round for which it waits."""
        self._checks = checks

    def _tested(self) -> dict[str, Any]:
        """What this node finds out about itself now, by fields of ``Member``."""
        if self._checks is None:
            return {}
        declared = self._cache.round
        self._checked = declared.number if declared.state == "over" else 0
        said = (CheckReport(each.name, each.verdict, each.text, each.value, each.unit) for each in self._checks())
        return {"checks": tuple(itertools.islice(said, MOST_CHECKS)), "checked": self._checked}

    def _step(self, session: Session) -> Assignment | None:
        """Do what this node has been told. Returns its place once the round is complete."""
        if self._round.has_new_session:
            self._register(session)
        if self._cache.leader is None:
            self._election.campaign()
        over = self._cache.round
        if self._checks is not None and self._is_spare and over.state == "over" and over.number > self._checked:
            self._registration.publish(**self._tested())
        place, declared = self._cache.assignment, self._cache.round
        if place is not None and place.refused:
            raise errors.SettingsDiffer(
                f"this node cannot take part in run {self._request.run_id!r}: {place.refused}",
                remedy="Give each node a different --node-rank.",
            )
        if self._is_candidate(declared, place):
            self._retry_at = self._probe_admission(declared)
        elif place is None or not place.is_place or place.round <= self._round.number:
            pass  # it has not been told its place yet
        elif not place.master_addr:
            self._serve(place, session)
        elif not self._has_tried(place):
            self._reach(place)
        elif declared.number == place.round and declared.state in ("complete", "over"):
            return self._enter(place, declared, session)
        return None

    def _register(self, session: Session) -> None:
        """Say in a new session that this node is there, and where others find it."""
        self._round.belong()
        address = self._request.local_addr or session.local_addr
        public = default_address(self._runtime) if is_loopback_address(address) else address
        me = self._registration.me
        listens = self._port.listen(name_of(me.node_id, me.incarnation), address, public)
        self._registration.publish(
            address=address, public=public, listens=listens, dialled=session.remote_addr, known_round=self._cache.newest
        )

    def _serve(self, place: Assignment, session: Session) -> None:
        me = self._registration.me
        if me.store is None or me.store[0] != place.round:
            address = me.address if self._request.local_addr else place.publish or me.address
            served = self._store.serve(place, address)
            self._cache.tell(RoundEvent("served", place.round, place.rank, place.world))
            self._registration.publish(unless=lambda: self._has_moved(session), store=served)

    def _has_moved(self, session: Session) -> bool:
        """Whether this node may be at another of several services since."""
        return self._votes is not None and self._registration.session is not session

    def _has_tried(self, place: Assignment) -> bool:
        """Whether this node has said if it reaches the store of ``place``."""
        me = self._registration.me
        if me.store_ready_round != place.round or self._votes is None or me.unreachable:
            return me.store_ready_round == place.round
        return votes_reached(me.votes, place) == me.votes  # not of another round of that number

    def _reach(self, place: Assignment) -> None:
        unreachable = self._store.reach(place)
        if isinstance(unreachable, float):
            self._retry_at = unreachable
            return
        said: dict[str, Any] = {"store_ready_round": place.round, "candidate": False, "unreachable": unreachable}
        if not unreachable:
            self._cache.tell(RoundEvent("reached", place.round, place.rank, place.world))
            if self._votes is not None:
                carried = votes_reached(self._registration.me.votes, place)
                if len(carried) > MOST_VOTES:
                    said["unreachable"] = "too many rounds that it has reached were never declared"
                else:
                    said["votes"] = carried
        self._registration.publish(**said)

    def _enter(self, place: Assignment, declared: Round, session: Session) -> Assignment | None:
        """The round has been complete; returns this node's place if it goes on in it."""
        works, votes = declared.state == "complete", self._votes
        # nodes may have kept one of that number from elsewhere; if it is over, the vote in either stays undecided
        if works and votes is not None and not declared.is_of(place):
            return None  # a different round with that number: this node waits for the next
        self._round.enter(place)
        if votes is None:
            self._registration.update(votes=(vote_of(place, complete=works),), server_rank=declared.server_rank)
        if works and (votes is None or votes.complete(place, declared)):
            if place.rank == 0:
                log_rank_table(session, place)
            return place
        self._store.close(self._round.number)
        # it was over before this node had heard that it was complete, or this node has been elsewhere meanwhile
        self._registration.publish(last_round=self._round.number, store=None)
        return None

    def _is_candidate(self, declared: Round, place: Assignment | None) -> bool:
        """Whether round ``declared`` works without this node, and has room for it."""
        if declared.state != "complete" or declared.number <= self._round.behind:
            return False
        if declared.world >= self._request.max_nodes:
            return False
        if place is not None and place.is_place and place.round >= declared.number:
            return False
        me = self._registration.me
        return me.store_ready_round < declared.number or bool(me.unreachable)

    def _probe_admission(self, declared: Round) -> float:
        """Dial the store of a round that this node wants to enter, and tell the others the result.

        Blocks for about a second at most. Returns when to do so again, in the monotonic clock's seconds; infinite if
        there is no need.
        """
        now = self._runtime.monotonic()
        if declared.number != self._probed_round:
            self._probed_round, self._next_probe, self._give_up_at = declared.number, now, now + self._store.patience
            self._late_pauses = growing(2.0, _LONGEST_PAUSE_S, factor=2.0)
        if now < self._next_probe:
            return self._next_probe
        reason = self._dial(declared)
        if not reason:
            self._registration.publish(store_ready_round=declared.number, candidate=True, unreachable="")
            return math.inf
        now = self._runtime.monotonic()
        is_late = now >= self._give_up_at
        if is_late and self._registration.me.store_ready_round < declared.number:
            logger.warning(
                "this node cannot enter round %d: cannot reach the workers' store at %s port %d (%s); trying again",
                declared.number,
                declared.master_addr,
                declared.master_port,
                reason,
            )
            unreachable = f"{reason}, for {self._store.patience:g} s"
            self._registration.publish(store_ready_round=declared.number, candidate=True, unreachable=unreachable)
        self._next_probe = now + (next(self._late_pauses) if is_late else _PAUSE_S)
        return self._next_probe

    def _dial(self, declared: Round) -> str:
        """Dial that store; returns why that was not possible, or ""."""
        address = self._registration.me.address
        if not declared.master_addr or (is_loopback_address(declared.master_addr) and not is_loopback_address(address)):
            return ""  # all its nodes are on one machine: with one from elsewhere, the next has a different address
        try:
            connection, reason = self._store.attempt(Endpoint(declared.master_addr, declared.master_port), _ATTEMPT_S)
        except errors.EndpointUnreachable as error:  # something other than a store answers
            return str(error)
        if connection is not None:
            connection.close()
        return reason


def raise_if_not_needed(cache: WatchCache, request: Request, round_: int, *, spare: bool) -> None:
    """Raise what ends the waiting of a node whose last round was ``round_``: the job has ended or goes on without it.

    ``spare``: the node was in an earlier round, or has waited while others worked, ready to replace one of them.
    """
    if cache.ended is not None:
        raise ended_error(cache.ended, request)
    if cache.round.state == "failed" and cache.round.number > round_:
        if cache.round.unfit:
            raise errors.PreflightFailed(f"run {request.run_id!r} cannot go on: {cache.round.reason}")
        raise errors.RendezvousFailed(
            f"run {request.run_id!r}: round {cache.round.number} failed: {cache.round.reason}",
            remedy="Check the route and the firewall between these nodes (--rdzv-conf worker_ports=FIRST-LAST confines "
            "the ports), or name the right address with --local-addr.",
        )
    if is_finishing(cache) and not _is_inside(cache, round_):
        if spare:
            was = "was left out" if round_ else "was a spare"
            raise errors.SpareReleased(f"run {request.run_id!r} is done without this node, which {was}")
        raise errors.NotNeeded(
            f"run {request.run_id!r} at {request.endpoint} is about to end ({cache.finishing.by} is done): this node "
            "came too late to take part and has not run its script",
            remedy="For another job use another --rdzv-id, or start it after this one has ended.",
        )


def _is_inside(cache: WatchCache, round_: int) -> bool:
    """Whether the node has a place in the round that is complete, or had one when it was complete."""
    place = cache.assignment  # read after ``is_finishing``: what is heard in between may be this place, and then that
    return round_ == cache.round.number or (place is not None and place.is_place and place.round == cache.round.number)


def is_finishing(cache: WatchCache) -> bool:
    """Whether a node of the round was done and has left, so that the job is about to end."""
    return cache.round.state == "complete" and cache.finishing.round == cache.round.number


_NEW_KIND_S = 1.0
_LIVE_AFTER_S, _LIVE_EVERY_S = 1.0, 0.5
_WIDTH = 160


class ProgressReporter:
    """Reports for one wait. Used by one thread; ``facts`` is called when something is to be reported."""

    def __init__(self, facts: Callable[[], str], *, live: bool, runtime: Runtime) -> None:
        self._facts, self._runtime = facts, runtime
        self._start = self._runtime.monotonic()
        self._live = live and sys.stderr is not None and sys.stderr.isatty()
        self._shown = 0
        self._kinds = {""}
        self.next_at = self._start + (_LIVE_AFTER_S if self._live else EVERY_S)
        """When ``report`` next has something to do, in the monotonic clock's seconds."""

    def report(self, kind: str = "") -> None:
        """Report if it is time to. A new kind of waiting is also reported, once it has lasted for a second."""
        now = self._runtime.monotonic()
        if kind not in self._kinds:
            self._kinds.add(kind)
            self.next_at = min(self.next_at, now + _NEW_KIND_S)
        if now < self.next_at:
            return
        text = f"waiting: {self._facts()} ({now - self._start:.0f} s)"
        if not self._live:
            self.next_at = now + EVERY_S
            logger.info("%s", text)
            return
        self.next_at = now + _LIVE_EVERY_S
        text = printable(text)[:_WIDTH]
        self._write("\r" + text.ljust(self._shown))
        self._shown = len(text)

    def end(self) -> None:
        """Remove the live line from the screen."""
        if self._shown:
            self._write("\r" + " " * self._shown + "\r")
            self._shown = 0

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):  # whoever was looking at it is gone
            self._live = False


def _remedy_for_timeout(request: Request) -> str:
    remedy = (
        "Check the output of the missing nodes, or start them with the same --rdzv-endpoint, --rdzv-id and --nnodes. "
        "--rdzv-conf timeout=SECONDS waits longer."
    )
    if is_only_local(request.endpoint):
        remedy += (
            f" Nodes on other machines cannot reach {request.endpoint}: give all nodes another address of this one."
        )
    return remedy


_ROWS = 64
_ANSWER_S = 2.0  # seconds to wait for an answer; this node's workers are kept waiting meanwhile


def log_rank_table(session: Session, place: Assignment) -> None:
    """Log the table: one request, on one node, once a round. Larger tables are cut: the log is for people.

    The round is complete whether or not the service answers now.
    """
    if place.world == 1 or not logger.isEnabledFor(logging.INFO):
        return
    try:
        held, _ = session.list(keys.NODES, timeout=min(_ANSWER_S, request_timeout(session)))
    except (errors.ConnectionLost, TimeoutError) as error:
        logger.info("round %d, %d nodes (they cannot be listed now: %s)", place.round, place.world, error)
        return
    every = (each for each in readable(Assignment, held) if each.round == place.round and each.is_place)
    nodes = sorted((each for each in every if each.rank < _ROWS), key=lambda each: each.rank)
    several = len({each.domain for each in nodes}) > 1
    rows = [
        f"  {each.rank:>4}  {each.host} (pid {each.pid})  {each.address}"
        + (f"  {each.nproc} worker(s)" if each.nproc else "")
        + (f"  {in_words(each.domain)}" if several else "")
        for each in nodes
    ]
    more = [f"  ... and {place.world - _ROWS} more"] if place.world > _ROWS else []
    hosts = some((f"{each.rank} {each.host}" for each in nodes), of=place.world)
    logger.info("round %d, %d nodes: %s", place.round, place.world, hosts)
    logger.debug("round %d:\n%s", place.round, "\n".join([*rows, *more]))
