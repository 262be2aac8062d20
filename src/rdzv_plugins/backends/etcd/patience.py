"""Waiting for a cluster that answers, but refuses what it will do once somebody has seen to it.

It has no space left, too many clients ask it at once, or the user's password was changed. Its operator needs some time
for that: it gets as much as a cluster that does not answer. On the loop's thread only.
"""

from __future__ import annotations

import logging
import time

from rdzv_plugins.errors import RendezvousFailed
from rdzv_plugins.reporting import EVERY_S

logger = logging.getLogger(__name__)

_QUIET_S = 1.0
"""What is over within this many seconds is not worth a line."""


class Patience:
    """Patience with one kind of refusal, for ``limit`` seconds from the first one on."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: float | None = None
        self._report_at = 0.0
        self._told = False

    def ended_by(self, refusal: RendezvousFailed) -> bool:
        """Note another refusal; True once this has gone on for too long. Reports now and then what is waited for."""
        now = time.monotonic()
        if self._since is None:
            self._since, self._report_at, self._told = now, now + _QUIET_S, False
        left = self._since + self._limit - now
        if left <= 0:
            return True
        if now >= self._report_at:
            self._told, self._report_at = True, now + EVERY_S
            logger.warning("%s; this node waits for that for another %.0f s at most. %s", refusal, left, refusal.remedy)
        return False

    def rewarded(self) -> None:
        """Note that etcd has fulfilled a request again."""
        if self._told and self._since is not None:
            logger.warning("etcd accepts again what it had refused, after %.0f s", time.monotonic() - self._since)
        self._since, self._told = None, False
