"""When the service comes back without memory, a node whose workers are running keeps its place and says so.

It may do that only if its session cannot have ended before the service did: the service was heard from within the
session's time to live when the connection broke. Until all nodes of the round have come back and the round is declared
again, the round is not known to hold.
"""

from __future__ import annotations

import logging
import math

from rdzv_plugins.coordination import Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.joining import Joining
from rdzv_plugins.elastic.keys import Assignment
from rdzv_plugins.elastic.myself import Myself
from rdzv_plugins.elastic.view import View
from rdzv_plugins.runtime import Runtime

logger = logging.getLogger(__name__)


class Keeping:
    """A node's part; the leader's is ``kept_round``. The link calls it, on its threads."""

    def __init__(self, view: View, joining: Joining, myself: Myself, runtime: Runtime) -> None:
        self._view, self._joining, self._self, self._runtime = view, joining, myself, runtime
        self._place: Assignment | None = None
        self._waiting_for = 0

    def lost(self, session: Session, opened: int) -> None:
        """Note that ``session`` has ended; ``opened`` is its number, as ``Link`` counts."""
        joining = self._joining
        heard = self._runtime.now() < getattr(session, "known_until", -math.inf)
        keeps = heard and joining.opened == opened and not joining.active and self._goes_on()
        self._place = joining.place if keeps else None

    def take_over(self, session: Session, timeout: float) -> bool:
        """Carry the round that this node has kept over to a new session, if the service knows of none. True if done."""
        if self._place is None or self._joining.active:
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
            if declared.number == round_ == self._joining.round and not self._joining.is_over:
                logger.warning("round %d goes on: all of its nodes have come back", round_)

    def _goes_on(self) -> bool:
        """Whether the round goes on, as far as this node has heard."""
        joining, view, me = self._joining, self._view, self._self.me
        round_ = joining.round
        if joining.place is None or round_ in (0, me.cut_off, view.finishing.round) or me.leaving or view.ended:
            return False
        if joining.is_unconfirmed:
            return self._place is joining.place
        return not joining.is_over and view.round.state == "complete"
