"""The round that this node is in, for how long it is sure to hold, and what becomes of it if the service forgets it.

It holds as long as the session it was joined with, unless it is over. When the service comes back without memory, a
node whose workers are running keeps its place and says so. It may do that only if its session cannot have ended before
the service did: the service was heard from within the session's time to live when the connection broke. Until all nodes
of the round have come back and the round is declared again, the round is not known to hold.

Was a node lost (``FailureDetector``)? A worker has failed, or this node's proxy has lost the workers' store of its
round. A node that is cut off from that store tells the others, which form a new round.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rdzv_plugins.coordination import Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Assignment
from rdzv_plugins.elastic.node_session import Registration, WatchCache
from rdzv_plugins.elastic.retry import LEAST_S, BackgroundTasks, known_until, request_timeout
from rdzv_plugins.errors import ConnectionLost, RdzvError
from rdzv_plugins.runtime import Runtime

if TYPE_CHECKING:
    from rdzv_plugins.elastic.failover import EpochVotes
    from rdzv_plugins.elastic.liveness_probe import ProbePort
    from rdzv_plugins.elastic.options import ElasticOptions
    from rdzv_plugins.elastic.round_store import RoundStore
    from rdzv_plugins.interfaces import Request

logger = logging.getLogger(__name__)

_ASK_S, _AGAIN_S = 1.0, 0.05
_LONG_AGO = 1e-9


class CurrentRound:
    """This node's last round, as ``MemberJoin`` has found it: a ``Holding``.

    Changed by the thread that joins; any thread may read, and one waits for news.
    """

    def __init__(self, cache: WatchCache, registration: Registration, ttl: float, runtime: Runtime) -> None:
        self._cache, self._registration = cache, registration
        self.ttl, self._runtime = ttl, runtime
        self._call: Callable[[], None] | None = None
        self._seen = cache.version
        self._opened = 0  # which of this node's sessions it belongs to, as ``Registration`` counts them
        self.is_joining = False  # whether this node waits for another round
        self.number = 0  # the last round that was complete with this node in it
        self.place: Assignment | None = None  # this node's place in its last complete round
        self._kept: Assignment | None = None  # the same, kept since the session with which it was joined has ended
        self._waiting_for = 0  # the round that goes on if all of its nodes come back

    @contextlib.contextmanager
    def joining(self) -> Iterator[None]:
        """A context in which this node waits for another."""
        self.is_joining = True
        try:
            yield
        finally:
            self.is_joining = False

    def belong(self) -> None:
        """From now on this node's round is one of its newest session."""
        self._opened = self._registration.opened

    def enter(self, place: Assignment) -> None:
        """Its round is complete, and this is its place there."""
        self.number, self.place = place.round, place

    @property
    def has_new_session(self) -> bool:
        """Whether this node's newest session is not the one of its round: nobody there knows of this node."""
        return self._registration.opened != self._opened

    @property
    def is_over(self) -> bool:
        """Whether this node has to join again: its round does not go on, or the service reports a different one."""
        declared = self._cache.round
        if declared.number != self.number or self.place is None:
            return declared.number > 0
        return declared.state == "over" or self._is_another

    @property
    def _is_another(self) -> bool:
        """Whether a service that has lost its memory has given the number of this node's round to another one."""
        declared, place = self._cache.round, self.place
        if declared.number != self.number or declared.state != "complete" or place is None:
            return False
        return not declared.is_of(place)

    @property
    def behind(self) -> int:
        """The number up to which rounds are behind this node once it waits for another."""
        return self.number - self._is_another

    @property
    def is_unconfirmed(self) -> bool:
        """Whether the service has lost its memory and it is not yet known if its round goes on."""
        return self._cache.round.number == 0 < self.number

    def must_rejoin(self) -> bool:
        """Whether this node has to leave its round: that is over, the node is cut off, or the session is newer."""
        cut_off = self._registration.me.cut_off_round == self.number > 0
        return self.is_over or cut_off or self.has_new_session

    def until(self) -> float:
        return 0.0 if self.is_over else self._lives_until(math.inf)

    def _lives_until(self, unknown: float) -> float:
        """When the service may end the session at the earliest; ``unknown`` if that cannot tell."""
        session = self._registration.session
        if self.ended():
            return 0.0
        # its connection is broken: the service has ended it, is gone itself, or has come back without memory
        if session is None or self.is_unconfirmed:
            return _LONG_AGO
        return known_until(session, unknown)

    def ended(self) -> bool:
        return self.has_new_session or self._registration.problem is not None

    def sure(self) -> bool:
        return self._runtime.now() < self._lives_until(math.inf)

    def confirm(self, timeout: float) -> bool:
        session = self._registration.session
        if session is None:
            return False
        try:
            session.list(keys.ROUND, timeout=min(timeout, request_timeout(session)))
        except (ConnectionLost, TimeoutError):
            return False
        except RdzvError:  # it has answered
            pass
        return True

    def session_lives(self) -> bool:
        """Wait, after a standstill, until this is certain: True if the session lives, False once it has ended."""
        while not self.ended():
            seen, until = self._cache.version, self._lives_until(math.nan)
            if self.confirm(_ASK_S) if math.isnan(until) else self._runtime.now() < until:
                return True
            self._cache.wait(seen, _AGAIN_S)
        return False

    def wait_for_news(self, timeout: float) -> None:
        self._seen = self._cache.wait(self._seen, timeout)

    def on_news(self, call: Callable[[], None] | None) -> None:
        self._call = call

    def on_change(self) -> None:
        """Report that there is news, which may concern the round that this node has kept. On the thread of the news."""
        call = self._call
        if call is not None:
            call()
        declared, round_ = self._cache.round, self._waiting_for
        if round_ and declared.number:
            self._waiting_for = 0
            if declared.number == round_ == self.number and not self.is_over:
                logger.warning("round %d goes on: all of its nodes have come back", round_)

    # a node's part in keeping a round; the leader's is ``RoundRecovery``. Called on the threads that open sessions

    def session_lost(self, session: Session) -> None:
        """``session``, the newest, has ended."""
        heard = self._runtime.now() < known_until(session, -math.inf)
        keeps = heard and not self.has_new_session and not self.is_joining and self._goes_on()
        self._kept = self.place if keeps else None

    def carry_over(self, session: Session, timeout: float) -> Assignment | None:
        """Carry the round that this node has kept over to a new session, if the service knows of none. Its place."""
        if self._kept is None or self.is_joining:
            return None
        held, _ = session.list(keys.ROUND, timeout=timeout)
        if held:
            self._kept, self._waiting_for = None, 0
        else:
            self._waiting_for = self._kept.round
        return self._kept

    def _goes_on(self) -> bool:
        """Whether the round goes on, as far as this node has heard."""
        cache, me = self._cache, self._registration.me
        no_longer = (0, me.cut_off_round, cache.finishing.round)
        if self.place is None or self.number in no_longer or me.leaving or cache.ended:
            return False
        if self.is_unconfirmed:
            return self._kept is self.place
        return not self.is_over and cache.round.state == "complete"


@dataclass(frozen=True)
class NodeContext:
    """What the parts of a node's side work on. Made once, by the handler."""

    request: Request
    options: ElasticOptions
    cache: WatchCache
    registration: Registration
    round: CurrentRound
    store: RoundStore
    port: ProbePort
    in_background: BackgroundTasks
    runtime: Runtime
    votes: EpochVotes | None = None
    """With several endpoints: what is taken from one to another."""


_NEWS_S = 2.0  # how long to wait for news that the round is over, in seconds, while the service answers


class FailureDetector:
    """``peer_lost`` is called by one thread, ``cut_off`` by any."""

    def __init__(self, node: NodeContext) -> None:
        self._ttl, self._cache, self._registration = node.options.ttl, node.cache, node.registration
        self._round, self._store, self._runtime = node.round, node.store, node.runtime
        self._in_background = node.in_background

    def peer_lost(self) -> bool:
        """Wait for the answer, at most twice the time to live.

        A node that gives no sign of life is lost when its session ends. That happens within its time to live; twice
        that allows for a service that elects a new leader of its own in between. While the service does not answer,
        nobody can tell; it is then asked again until the outage has lasted too long: this waits for no more of it.
        """
        if self._round.place is None or self._round.place.world == 1:
            return False
        if (lost := self._ask_all()) is None:
            logger.info("a worker has failed, and the rendezvous does not answer: waiting to learn if a node was lost")
        while lost is None:
            lost = self._ask_all()
        return lost

    def _ask_all(self) -> bool | None:
        """Whether a node has been lost. None: the service has not answered, or has forgotten what it was asked."""
        self._wait_confirmed()
        session = self._registration.session
        outage = self._registration.outage
        deadline = self._runtime.monotonic() + 2 * (session.ttl if session is not None else self._ttl) + 1
        asked = self._cache.probe.number + 1
        if not self._round.must_rejoin():  # otherwise this is an answer; do not ask another session's nodes
            left = deadline - self._runtime.monotonic()
            self._registration.publish_within(
                min(left, max(LEAST_S, outage.left)) if outage.lasts else left, heartbeat_wanted=asked
            )
        while True:
            seen = self._cache.version
            self._raise_if_ended()
            if self._round.must_rejoin():
                declared = self._cache.round  # another place may still know an earlier one, which is no answer
                asked_for = declared.number == self._round.number and declared.cause == "asked"
                return not asked_for or self._round.has_new_session
            if self._round.is_unconfirmed or self._registration.session not in (session, None):
                return None
            probe = self._cache.probe
            answered = probe.answered and probe.number >= asked
            if outage.lasts:  # it ends where it ends, whoever waits; a last try to reach the service may end later
                deadline = min(deadline, self._runtime.monotonic() + max(LEAST_S, outage.left))
            if answered or self._runtime.monotonic() >= deadline:
                if not answered and self._registration.is_out:
                    return None
                return self.is_cut_off
            self._cache.wait(seen, deadline - self._runtime.monotonic())

    def _wait_confirmed(self) -> None:
        """Wait until the round is confirmed: a service without memory knows no node of it before all are back."""
        while True:
            seen = self._cache.version
            self._raise_if_ended()
            if not self._round.is_unconfirmed or self._round.must_rejoin():
                return
            self._cache.wait(seen, _NEWS_S)

    def _raise_if_ended(self) -> None:
        self._registration.raise_if_over()
        if self._registration.is_closed:
            raise ConnectionLost("this node has left the rendezvous")

    @property
    def is_cut_off(self) -> bool:
        """Whether this node's workers have lost a store they need, which its proxy is about to report."""
        return self._needs_store() and self._store.is_cut_off()

    def cut_off(self, round_: int, why: str) -> None:
        """Tell the others that the proxy has lost the store of ``round_`` and its workers. On the proxy's thread."""
        if round_ != self._round.number or self._round.must_rejoin():
            return  # as intended
        reason = f"is cut off from the workers' store: {why}"
        if not self._needs_store():
            logger.debug("this node, or another one, is done, and %s", reason)
        elif self._registration.publish_cut_off(round_, reason):
            self._in_background("cut off", lambda: self._report(round_, why))

    def _needs_store(self) -> bool:
        """Whether its workers still need the store: no node of the round is done, and the job has not ended."""
        me, cache, round_ = self._registration.me, self._cache, self._round.number
        return not me.leaving and round_ not in (me.finished_round, cache.finishing.round) and cache.ended is None

    def _report(self, round_: int, why: str) -> None:
        """Report it, unless the round was already over and this node had not heard of that yet."""
        deadline = self._runtime.monotonic() + _NEWS_S
        while self._runtime.monotonic() < deadline:
            seen, declared = self._cache.version, self._cache.round
            if declared.number > round_ or declared.state == "over":
                if why not in declared.reason:
                    return
                break
            self._cache.wait(seen, deadline - self._runtime.monotonic())
        logger.warning(
            "lost the workers' store of round %d (%s); stopping workers and joining a new round",
            round_,
            why,
        )
