"""Keeping a session alive, and saying how it has ended. On the loop's thread only.

Redis ends a session of which it has heard nothing for its time to live, by its own clock, which stands while it hears
of nobody. So only Redis knows whether a session lives: while it does not answer, this node does not know, and goes on
for as long as the user allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator

from rdzv_plugins.errors import ConnectionLost

from rdzv_redis.following import Follower
from rdzv_redis.loop import within
from rdzv_redis.requests import Gone, Requests
from rdzv_redis.server import Server

logger = logging.getLogger(f"rdzv_plugins.{__name__}")  # the launcher prints what is logged below that name

PER_TTL = 4
"""So often within the shortest time to live a node says that it lives."""
_LONGEST_PERIOD_S = 10.0
"""That the way to Redis is dead is found out by this alone; the watches are deaf meanwhile."""
_QUIET_S = 1.0
"""Another connection takes less, and is not worth a line."""
_REPORT_EVERY_S = 10.0


def now() -> float:
    """Seconds that do not jump, and that count on while the machine sleeps where it can tell."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Keeper:
    """Renews a session; who renews ends those that did not. ``outage``: seconds without an answer to put up with."""

    def __init__(self, server: Server, requests: Requests, follower: Follower, ttl: float, outage: float) -> None:
        self._server, self._requests, self._follower = server, requests, follower
        self._ttl, self._patience = ttl, max(outage, ttl)
        self._sooner = asyncio.Event()
        self._last = now()
        self._stood = 0.0
        self._troubled = False

    def shorten(self, ttl: float) -> None:
        """There is a session now with that time to live: others are to notice its end in time."""
        if ttl < self._requests.shortest:
            self._requests.shortest = ttl
            self._sooner.set()

    async def run(self) -> ConnectionLost:
        """Until the session has ended, or nobody has answered for too long: returns why."""
        try:
            while await self._renew():
                period = min(self._requests.shortest / PER_TTL, _LONGEST_PERIOD_S)
                self._sooner.clear()
                pause = max(0.0, self._last + period - now())
                with contextlib.suppress(TimeoutError), self._taking(pause):
                    await within(pause, self._sooner.wait())
            return self._unanswered()
        except Gone as error:
            return self.gone(error.how)
        except Exception as error:  # it must not end in silence
            logger.exception("keeping the session alive has failed")
            return ConnectionLost(f"keeping the session with {self._server.name} alive has failed: {error!r}")

    async def _renew(self) -> bool:
        """False when it has taken too long."""
        wait, told = _QUIET_S, False
        while (left := self._last + self._patience - now()) > 0:
            sent = now()
            try:
                with self._taking(min(wait, left)):
                    revision = await self._requests.keep(time.monotonic() + min(wait, left))
            except TimeoutError:
                self._troubled = True
                if wait >= left:
                    return False
                told = True
                logger.warning(
                    "%s has not answered for %.0f s (%s); this node goes on without it for another %.0f s at most",
                    self._server.name,
                    now() - self._last,
                    self._server.reason.text,
                    max(0.0, self._last + self._patience - now()),
                )
                wait = _REPORT_EVERY_S
                continue
            if told:
                logger.warning("%s answers again, after %.0f s", self._server.name, now() - self._last)
            self._last, self._troubled, self._stood = sent, False, 0.0
            self._follower.expect(revision)
            return True
        return False

    @contextlib.contextmanager
    def _taking(self, longest: float) -> Iterator[None]:
        """What is done takes ``longest`` seconds at most, unless this process stands still."""
        began = now()
        try:
            yield
        finally:
            late = now() - began - longest
            if late > self._ttl / 2:
                self._stood = max(self._stood, late)

    def _unanswered(self) -> ConnectionLost:
        text = f"{self._server.name} has not answered for {now() - self._last:.0f} s: {self._server.reason.text}"
        error = ConnectionLost(text, remedy=self._server.remedy)
        error.silent = True
        return error

    def gone(self, how: str) -> ConnectionLost:
        """Why, as far as this node can tell, when Redis says so."""
        lead, silence = f"the session with {self._server.name} has ended: ", now() - self._last
        if how == "BACK" or (how == "LOST" and silence < self._patience):
            return ConnectionLost(
                f"{lead}Redis has lost data of this run (it was started again without them, it was flushed, a replica "
                "that was behind took over, or it evicts keys)",
                remedy="Let Redis keep its data (appendonly yes, maxmemory-policy noeviction), and delete none of a "
                "run that goes on.",
            )
        if self._troubled and not self._stood:
            return ConnectionLost(f"{lead}it was not answered for {silence:.1f} s, and others were ({self._ttl:g} s)")
        if silence < self._ttl / 2:
            return ConnectionLost(f"{lead}though it was renewed {silence:.1f} s ago: somebody has ended it by hand")
        return ConnectionLost(
            f"{lead}this process stood still for {max(self._stood, silence):.1f} s (it was stopped, or the machine "
            f"slept or was overloaded); after {self._ttl:g} s it counts as lost"
        )
