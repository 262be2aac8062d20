"""Keeping a session alive, and saying how it has ended. On the loop's thread only."""

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
from rdzv_plugins.kvstore.coordination.framed_connection import Lease
from rdzv_plugins.timing import EVERY_S

logger = logging.getLogger(__name__)

PER_TTL = 4
"""How often a session says that it is alive within its time to live."""
_LONGEST_PERIOD_S = 10.0
"""That the way to the service is dead may be found out by this alone."""
_QUIET_S = 1.0
"""Another connection takes less, and is not worth a line."""


class KeepAlive:
    """Renews a session until the service has not answered for as long as its ``lease`` puts up with."""

    def __init__(self, asking: Asking, client: ServiceClient, ttl: float, opened: float) -> None:
        self._asking, self._client = asking, client
        self.lease = Lease(asking.name, ttl, asking.outage, opened)
        self._period = min(ttl / PER_TTL, _LONGEST_PERIOD_S)
        self._stood = 0.0  # for so long this process has stood still since
        self._troubled = False

    @property
    def _silence(self) -> float:
        """Seconds since the newest answered request was sent."""
        return here().now() - self.lease.renewed

    async def run(self) -> ConnectionLost:
        """Keep the session alive until it has ended, or nobody has answered for too long; returns why."""
        try:
            while await self._renew():
                pause = max(0.0, self._period - self._silence)
                with contextlib.suppress(TimeoutError), self._taking(pause):
                    await within(pause, self._client.keep_alive_due())
            reason = self._asking.reason
            text = f"{self.lease.service} has not answered for {self._silence:.0f} s: {reason.text}"
            remedy = reason.remedy or default_remedy(self._client.service)
            return self.lease.lost(text, remedy=remedy, since=None if self._stood else self.lease.renewed)
        except ConnectionLost as error:
            return error
        except Exception as error:  # it must not end in silence
            logger.exception("keeping the session alive has failed")
            text = f"keeping the session with {self.lease.service} alive has failed: {error!r}"
            return self.lease.lost(text, silent=False, since=self.lease.renewed)

    async def _renew(self) -> bool:
        """False when it has taken too long."""
        wait, told = _QUIET_S, False
        while (left := self.lease.patience - self._silence) > 0:
            sent = here().now()
            try:
                with self._taking(min(wait, left)):
                    await self._ask(here().monotonic() + min(wait, left))
            except TIMEOUTS:
                self._troubled = True
                if wait >= left:
                    return False
                told = True
                self.lease.warn_silent(self._silence, self._asking.reason.text)
                wait = EVERY_S
                continue
            if told:
                self.lease.warn_back(self._silence)
            self.lease.renew(sent)
            self._troubled, self._stood = False, 0.0
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
            if self.lease.has_stood_still(late):
                self._stood = max(self._stood, late)

    def over(self) -> ConnectionLost:
        """Why the session is over, as far as this node can tell, if the service says that it is."""
        lead, silence = f"the session with {self.lease.service} has ended: ", self._silence
        service, ttl = self._client.service, self.lease.ttl
        if silence < (ttl / 2 if self._stood else ttl):
            return ConnectionLost(
                f"{lead}though it was renewed {silence:.1f} s ago: somebody has ended it by hand, or {service} "
                "has lost data"
            )
        if self._troubled and not self._stood:
            return ConnectionLost(f"{lead}it was not answered for {silence:.1f} s, and others were ({ttl:g} s)")
        return ConnectionLost(
            f"{lead}this process stood still for {max(self._stood, silence):.1f} s (it was stopped, or the machine "
            f"slept or was overloaded); after {ttl:g} s it counts as lost"
        )
