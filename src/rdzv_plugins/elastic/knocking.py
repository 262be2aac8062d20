"""A node that wants to enter a round that is at work without it dials that round's workers' store first.

Only once it has reached the store is the round ended for its sake: a node that is behind a firewall or stands still
costs the working nodes nothing. It tries again by itself, with growing pauses, and only speaks up when something has
changed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from rdzv_plugins.elastic.keys import Assignment, Round
from rdzv_plugins.elastic.myself import Myself
from rdzv_plugins.endpoints import Endpoint, is_loopback_address
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.interfaces import Request
from rdzv_plugins.runtime import Runtime

if TYPE_CHECKING:
    import socket

logger = logging.getLogger(__name__)

_ATTEMPT_S = 1.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0


Attempt = Callable[[Endpoint, float], "tuple[socket.socket | None, str]"]
"""Connects to a store within a time-out, like ``RoundStore.attempt``."""


class Knocking:
    """Dials the store of a round that this node wants to enter. Used by one thread.

    ``attempt`` connects to the store; failure to reach it is reported after ``patience`` s.
    """

    def __init__(self, request: Request, myself: Myself, patience: float, attempt: Attempt, runtime: Runtime) -> None:
        self._request, self._self, self._patience, self._attempt = request, myself, patience, attempt
        self._runtime = runtime
        self._round = 0
        self._give_up_at = self._pause = self._next = 0.0
        self.retry_at = math.inf
        """When to call ``knock`` again, in the monotonic clock's seconds; infinite if there is no need."""

    def is_outside(self, declared: Round, place: Assignment | None, last: int) -> bool:
        """Whether round ``declared`` works without this node, whose last one was ``last``, and has room for it."""
        self.retry_at = math.inf
        if declared.state != "complete" or declared.number <= last or declared.world >= self._request.max_nodes:
            return False
        if place is not None and place.is_place and place.round >= declared.number:
            return False
        me = self._self.me
        return me.reached < declared.number or bool(me.unreachable)

    def knock(self, declared: Round) -> None:
        """Dial the store once, and tell the others the result. Blocks for about a second at most."""
        now = self._runtime.monotonic()
        if declared.number != self._round:
            self._round, self._give_up_at, self._pause = declared.number, now + self._patience, _FIRST_PAUSE_S
            self._next = now
        if now < self._next:
            self.retry_at = self._next
            return
        reason = self._dial(declared)
        me = self._self.me
        if not reason:
            self._self.say(reached=declared.number, outside=True, unreachable="")
            return
        if self._runtime.monotonic() >= self._give_up_at and me.reached < declared.number:
            logger.warning(
                "this node cannot enter round %d: the workers' store at %s port %d cannot be reached: %s; it goes on "
                "trying",
                declared.number,
                declared.master_addr,
                declared.master_port,
                reason,
            )
            self._self.say(reached=declared.number, outside=True, unreachable=f"{reason}, for {self._patience:g} s")
        if self._runtime.monotonic() >= self._give_up_at:
            self._pause = min(2 * max(1.0, self._pause), _LONGEST_PAUSE_S)
        self._next = self.retry_at = self._runtime.monotonic() + self._pause

    def _dial(self, declared: Round) -> str:
        """Return why that was not possible, or ""."""
        address = self._self.me.address
        if not declared.master_addr or (is_loopback_address(declared.master_addr) and not is_loopback_address(address)):
            return ""  # all its nodes are on one machine: with one from elsewhere, the next has a different address
        try:
            connection, reason = self._attempt(Endpoint(declared.master_addr, declared.master_port), _ATTEMPT_S)
        except EndpointUnreachable as error:  # something other than a store answers
            return str(error)
        if connection is not None:
            connection.close()
        return reason
