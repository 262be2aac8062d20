"""A Redis that is tried again until it can be used, and what is wrong with it meanwhile. On the loop's thread only."""

from __future__ import annotations

import asyncio
import random
import time

from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.kit import NO_ANSWER, SILENT, Reason, Security, Unusable, within
from redis.exceptions import RedisError

from rdzv_redis.diagnosis import diagnose
from rdzv_redis.refusals import STRANGE, reason_of
from rdzv_redis.target import Target
from rdzv_redis.wire import Wire

_RANDOM = random.Random()  # a generator of our own: the user may have seeded the other
_ATTEMPT_S = 2.0
"""The first time; then longer."""
_LONGEST_ATTEMPT_S = 10.0
_DIAGNOSIS_S = 1.0
_LEAST_DIAGNOSIS_S = 0.3
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0

TIMEOUTS = (TimeoutError, asyncio.TimeoutError)
"""One class from Python 3.11 on."""
TROUBLE = (RedisError, OSError, EOFError, *TIMEOUTS, Unusable)
"""What may come of a command."""


class Server:
    """``path`` is where the run's keys lie, for messages. ``prefix``: of all runs."""

    def __init__(self, target: Target, security: Security, prefix: str) -> None:
        self.target, self.security, self._prefix = target, security, prefix
        self.reason = Reason("no answer yet")
        self._noted = False
        """The reason was noted, and nothing was answered since."""
        self.proven = False
        """It has been of use once: what was right then is expected to become right again."""

    @property
    def name(self) -> str:
        """For messages."""
        return f"Redis at {self.target}"

    async def connect(self, deadline: float) -> Wire:
        """A connection, tried again and again until ``deadline``, in the monotonic clock's seconds.

        Raises ``TimeoutError`` with the reason, and ``EndpointUnreachable`` if waiting is of no use.
        """
        pause, limit = _FIRST_PAUSE_S, _ATTEMPT_S
        while (left := deadline - time.monotonic()) > 0:
            wire = Wire(self.target, self.security)
            try:
                await within(min(left, limit), wire.open())
                return wire
            except TROUBLE as error:
                await wire.drop()
                cut_short = left <= limit and isinstance(error, TIMEOUTS)
                self.note(await self._why(wire, error, deadline), cut_short=cut_short)
            except BaseException:
                await wire.drop()
                raise
            left = deadline - time.monotonic()
            await asyncio.sleep(max(0.0, min(left, pause * _RANDOM.uniform(0.5, 1.0))))
            pause, limit = min(pause * 1.5, _LONGEST_PAUSE_S), min(limit * 1.5, _LONGEST_ATTEMPT_S)
        raise TimeoutError(self.reason.text)

    def answered(self) -> None:
        """It is of use."""
        self._noted = False

    def note(self, reason: Reason, *, cut_short: bool = False) -> None:
        """It is of no use now. Raises ``EndpointUnreachable`` if it never was, and waiting is of no use.

        ``cut_short``: it was the caller who had no time left. What is known already says more than such a silence.
        """
        if cut_short and self._noted and reason in (SILENT, NO_ANSWER):
            return
        self.reason, self._noted = reason, True
        if reason.final and not self.proven:
            raise self.problem(f"{self.name} cannot be used")

    def problem(self, lead: str) -> EndpointUnreachable:
        """``lead``, and what is wrong."""
        return self.reason.error(lead, "Redis")

    def judge(self, error: BaseException) -> Reason:
        """What an error of an open connection means."""
        if isinstance(error, TIMEOUTS):
            return SILENT
        return error.reason if isinstance(error, Unusable) else reason_of(error, self.security, self._prefix)

    async def _why(self, wire: Wire, error: BaseException, deadline: float) -> Reason:
        if isinstance(error, TIMEOUTS) and not (wire.reached or self.security.tls):
            return NO_ANSWER
        reason = self.judge(error)
        unclear = reason in (SILENT, STRANGE) or not reason.remedy
        if unclear and not self.proven:
            given = min(_DIAGNOSIS_S, max(_LEAST_DIAGNOSIS_S, deadline - time.monotonic()))
            return await diagnose(self.target, tls=self.security.tls, timeout=given) or reason
        return reason
