"""The round that this node is in, for how long it is sure to hold, and what becomes of it if the service forgets it.

It holds as long as the session it was joined with, unless it is over. When the service comes back without memory, a
node whose workers are running keeps its place and says so. It may do that only if its session cannot have ended before
the service did: the service was heard from within the session's time to live when the connection broke. Until all nodes
of the round have come back and the round is declared again, the round is not known to hold.
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
from rdzv_plugins.elastic.contact import Contact
from rdzv_plugins.elastic.insisting import known_until, patience
from rdzv_plugins.elastic.keys import Assignment
from rdzv_plugins.elastic.myself import Myself
from rdzv_plugins.elastic.view import View
from rdzv_plugins.errors import ConnectionLost, RdzvError
from rdzv_plugins.runtime import Runtime

if TYPE_CHECKING:
    from rdzv_plugins.elastic.options import ElasticOptions
    from rdzv_plugins.elastic.round_store import RoundStore
    from rdzv_plugins.interfaces import Request

logger = logging.getLogger(__name__)


class OwnRound:
    """This node's last round, as ``Joining`` has found it. Changed by the thread that joins; any thread may read."""

    def __init__(self, view: View, contact: Contact, myself: Myself) -> None:
        self._view, self._contact, self._self = view, contact, myself
        self._opened = 0  # which of this node's sessions it belongs to, as ``Contact`` counts them
        self.is_joining = False
        """Whether this node waits for another round."""
        self.number = 0
        """The last round that was complete with this node in it."""
        self.place: Assignment | None = None
        """This node's place in its last complete round."""

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
        self._opened = self._contact.opened

    def enter(self, place: Assignment) -> None:
        """Its round is complete, and this is its place there."""
        self.number, self.place = place.round, place

    @property
    def has_new_session(self) -> bool:
        """Whether this node's newest session is not the one of its round: nobody there knows of this node."""
        return self._contact.opened != self._opened

    @property
    def is_over(self) -> bool:
        """Whether this node has to join again: its round does not go on, or the service reports a different one."""
        declared = self._view.round
        if declared.number != self.number or self.place is None:
            return declared.number > 0
        return declared.state == "over" or self._is_another

    @property
    def _is_another(self) -> bool:
        """Whether a service that has lost its memory has given the number of this node's round to another one."""
        declared, place = self._view.round, self.place
        if declared.number != self.number or declared.state != "complete" or place is None:
            return False
        theirs = declared.master_addr, declared.master_port, declared.begun
        return theirs != (place.master_addr, place.master_port, place.begun)

    @property
    def behind(self) -> int:
        """The number up to which rounds are behind this node once it waits for another."""
        return self.number - self._is_another

    @property
    def is_unconfirmed(self) -> bool:
        """Whether the service has lost its memory and it is not yet known if its round goes on."""
        return self._view.round.number == 0 < self.number

    def must_rejoin(self) -> bool:
        """Whether this node has to leave its round: that is over, the node is cut off, or the session is newer."""
        cut_off = self._self.me.cut_off == self.number > 0
        return self.is_over or cut_off or self.has_new_session


class Keeping:
    """A node's part in keeping a round; the leader's is ``kept_round``. The link calls it, on its threads."""

    def __init__(self, view: View, own: OwnRound, myself: Myself, runtime: Runtime) -> None:
        self._view, self._round, self._self, self._runtime = view, own, myself, runtime
        self._place: Assignment | None = None
        self._waiting_for = 0

    def lost(self, session: Session) -> None:
        """Note that ``session``, the newest, has ended."""
        own = self._round
        heard = self._runtime.now() < known_until(session, -math.inf)
        keeps = heard and not own.has_new_session and not own.is_joining and self._goes_on()
        self._place = own.place if keeps else None

    def take_over(self, session: Session, timeout: float) -> bool:
        """Carry the round that this node has kept over to a new session, if the service knows of none. True if done."""
        if self._place is None or self._round.is_joining:
            return False
        held, _ = session.list(keys.ROUND, timeout=timeout)
        if held:
            self._place = None
        return self._place is not None

    def say(self) -> None:
        """Tell the others, in the new session. Blocks until that is done or the session has ended."""
        place = self._place
        if place is not None:
            self._waiting_for = place.round
            logger.warning(
                "the rendezvous has lost its memory: round %d goes on if all of its nodes come back to it", place.round
            )
            self._self.say_kept(place, self._view.newest)

    def hear(self) -> None:
        """Check whether the news concerns the round that this node has kept."""
        declared, round_ = self._view.round, self._waiting_for
        if round_ and declared.number:
            self._waiting_for = 0
            if declared.number == round_ == self._round.number and not self._round.is_over:
                logger.warning("round %d goes on: all of its nodes have come back", round_)

    def _goes_on(self) -> bool:
        """Whether the round goes on, as far as this node has heard."""
        own, view, me = self._round, self._view, self._self.me
        if own.place is None or own.number in (0, me.cut_off, view.finishing.round) or me.leaving or view.ended:
            return False
        if own.is_unconfirmed:
            return self._place is own.place
        return not own.is_over and view.round.state == "complete"


_ASK_S = 1.0
_AGAIN_S = 0.05
_LONG_AGO = 1e-9


class RoundHolding:
    """A ``Holding``. Thread-safe; one thread waits for news."""

    def __init__(self, contact: Contact, view: View, own: OwnRound, ttl: float, runtime: Runtime) -> None:
        self._contact, self._view, self._round, self._ttl = contact, view, own, ttl
        self._runtime = runtime
        self._call: Callable[[], None] | None = None
        self._seen = view.version

    @property
    def ttl(self) -> float:
        return self._ttl

    def until(self) -> float:
        session = self._contact.session
        if self._round.is_over or self.ended():
            return 0.0
        # its connection is broken: the service has ended it, is gone itself, or has come back without memory
        if session is None or self._round.is_unconfirmed:
            return _LONG_AGO
        return known_until(session, math.inf)

    def ended(self) -> bool:
        return self._round.has_new_session or self._contact.problem is not None

    def sure(self) -> bool:
        session = self._contact.session
        if session is None or self.ended() or self._round.is_unconfirmed:
            return False
        return self._runtime.now() < known_until(session, math.inf)

    def confirm(self, timeout: float) -> bool:
        session = self._contact.session
        if session is None:
            return False
        try:
            session.list(keys.ROUND, timeout=min(timeout, patience(session)))
        except (ConnectionLost, TimeoutError):
            return False
        except RdzvError:  # it has answered
            pass
        return True

    def session_lives(self) -> bool:
        """Wait until this is certain: True if the session lives, False once it has ended.

        For use after a standstill.
        """
        while not self.ended():
            session, seen = self._contact.session, self._view.version
            until = math.nan if session is None else known_until(session, math.nan)
            if self._round.is_unconfirmed:
                until = _LONG_AGO
            if self.confirm(_ASK_S) if math.isnan(until) else self._runtime.now() < until:
                return True
            self._view.wait(seen, _AGAIN_S)
        return False

    def wait_for_news(self, timeout: float) -> None:
        self._seen = self._view.wait(self._seen, timeout)

    def on_news(self, call: Callable[[], None] | None) -> None:
        self._call = call

    def tell(self) -> None:
        """Report that there is news. Called on the thread that brought it."""
        call = self._call
        if call is not None:
            call()


@dataclass(frozen=True)
class NodeContext:
    """What the parts of a node's side work on. Made once, by the handler."""

    request: Request
    options: ElasticOptions
    view: View
    contact: Contact
    myself: Myself
    round: OwnRound
    store: RoundStore
    runtime: Runtime
