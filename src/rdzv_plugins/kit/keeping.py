"""Keeping a session alive, and saying how it has ended. On the loop's thread only.

Only the service knows whether a session lives: while it does not answer, this node does not know, and goes on as long
as the user allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from rdzv_plugins.errors import ConnectionLost, RdzvError
from rdzv_plugins.kit.asking import Asking
from rdzv_plugins.kit.client import ServiceClient
from rdzv_plugins.kit.loop import TIMEOUTS, here, within
from rdzv_plugins.kit.reasons import Reason, default_remedy
from rdzv_plugins.timing import EVERY_S

logger = logging.getLogger(__name__)

PER_TTL = 4
"""How often a session says that it is alive within its time to live."""
_LONGEST_PERIOD_S = 10.0
"""That the way to the service is dead may be found out by this alone."""
_QUIET_S = 1.0
"""Another connection takes less, and is not worth a line."""


class KeepAlive:
    """Renews a session until the service has not answered for as long as this node puts up with, or for its ``ttl``.

    ``opened``: when the session was requested, by ``rdzv_plugins.clock.now``.
    """

    def __init__(self, asking: Asking, client: ServiceClient, ttl: float, opened: float) -> None:
        self._asking, self._client, self._name = asking, client, asking.name
        self._ttl, self._patience = ttl, max(asking.outage, ttl)
        self._period = min(ttl / PER_TTL, _LONGEST_PERIOD_S)
        self._last = opened
        self._stood = 0.0  # for so long this process has stood still since
        self._troubled = False

    @property
    def known_until(self) -> float:
        """The time until which the session surely lives (``rdzv_plugins.clock.now``). Any thread may ask."""
        return self._last + self._ttl

    async def run(self) -> ConnectionLost:
        """Keep the session alive until it has ended, or nobody has answered for too long; returns why."""
        try:
            while await self._renew():
                pause = max(0.0, self._last + self._period - here().now())
                with contextlib.suppress(TimeoutError), self._taking(pause):
                    await within(pause, self._client.keep_alive_due())
            reason = self._asking.reason
            text = f"{self._name} has not answered for {here().now() - self._last:.0f} s: {reason.text}"
            error = ConnectionLost(text, remedy=reason.remedy or default_remedy(self._client.service))
            error.silent, error.silent_since = True, None if self._stood else self._last
            return error
        except ConnectionLost as error:
            return error
        except Exception as error:  # it must not end in silence
            logger.exception("keeping the session alive has failed")
            lost = ConnectionLost(f"keeping the session with {self._name} alive has failed: {error!r}")
            lost.silent_since = self._last
            return lost

    async def _renew(self) -> bool:
        """False when it has taken too long."""
        wait, told = _QUIET_S, False
        while (left := self._last + self._patience - here().now()) > 0:
            sent = here().now()
            try:
                with self._taking(min(wait, left)):
                    await self._ask(here().monotonic() + min(wait, left))
            except TIMEOUTS:
                self._troubled = True
                if wait >= left:
                    return False
                told = True
                logger.warning(
                    "%s has not answered for %.0f s (%s); this node goes on without it for another %.0f s at most",
                    self._name,
                    here().now() - self._last,
                    self._asking.reason.text,
                    max(0.0, self._last + self._patience - here().now()),
                )
                wait = EVERY_S
                continue
            if told:
                logger.warning("%s answers again, after %.0f s", self._name, here().now() - self._last)
            self._last, self._troubled, self._stood = sent, False, 0.0
            return True
        return False

    async def _ask(self, deadline: float) -> None:
        asking = self._asking
        try:
            await asking.ask("keep_alive", self._client.keep_alive, deadline=deadline)
        except ConnectionLost:
            raise
        except (RdzvError, NotImplementedError) as error:  # the author's own; the service may do it later
            asking.reason = Reason(str(error) or repr(error), error.remedy if isinstance(error, RdzvError) else "")
            await asyncio.sleep(max(0.0, deadline - here().monotonic()))
            raise asking.late() from error

    @contextlib.contextmanager
    def _taking(self, longest: float) -> Iterator[None]:
        """What is done takes ``longest`` seconds at most, unless this process stands still."""
        began = here().now()
        try:
            yield
        finally:
            late = here().now() - began - longest
            if late > self._ttl / 2:
                self._stood = max(self._stood, late)

    def over(self) -> ConnectionLost:
        """Why the session is over, as far as this node can tell, if the service says that it is."""
        lead, silence = f"the session with {self._name} has ended: ", here().now() - self._last
        service = self._client.service
        if silence < (self._ttl / 2 if self._stood else self._ttl):
            return ConnectionLost(
                f"{lead}though it was renewed {silence:.1f} s ago: somebody has ended it by hand, or {service} "
                "has lost data"
            )
        if self._troubled and not self._stood:
            return ConnectionLost(f"{lead}it was not answered for {silence:.1f} s, and others were ({self._ttl:g} s)")
        return ConnectionLost(
            f"{lead}this process stood still for {max(self._stood, silence):.1f} s (it was stopped, or the machine "
            f"slept or was overloaded); after {self._ttl:g} s it counts as lost"
        )
