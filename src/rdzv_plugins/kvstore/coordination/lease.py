"""The life of a session as its node knows it, whatever the service: until when it surely lives, and when it is lost.

Only the service knows whether a session lives: while it does not answer, this node does not know, and goes on as long
as the user allows.
"""

from __future__ import annotations

import logging

from rdzv_plugins.errors import ConnectionLost

logger = logging.getLogger(__name__)


class Lease:
    """A session with ``service``, in words, that lives for ``ttl`` seconds after each sign of life.

    ``outage``: seconds of silence to put up with, at least ``ttl``. ``opened``: when the session was requested, by
    ``rdzv_plugins.clock.now``. One thread changes it; any may read it.
    """

    def __init__(self, service: str, ttl: float, outage: float, opened: float) -> None:
        self.service, self.ttl, self.patience = service, ttl, max(outage, ttl)
        self.renewed = opened
        """When the newest request that was answered had been sent."""

    @property
    def known_until(self) -> float:
        """The time until which the session surely lives: the service may have counted from ``renewed``."""
        return self.renewed + self.ttl

    def renew(self, sent: float) -> None:
        """What was sent then has been answered."""
        self.renewed = max(self.renewed, sent)

    def has_stood_still(self, late: float) -> bool:
        """Whether a silence that is noticed so late is not the service's: this process was stopped, or was too busy."""
        return late > self.ttl / 2

    def warn_silent(self, silence: float, why: str = "") -> None:
        """Tell the user that the service has been silent for so many seconds."""
        logger.warning(
            "%s has not answered for %.0f s%s; this node goes on without it for another %.0f s at most",
            self.service,
            silence,
            f" ({why})" if why else "",
            max(0.0, self.patience - silence),
        )

    def warn_back(self, silence: float) -> None:
        """Tell the user that the service answers again."""
        logger.warning("%s answers again, after %.0f s", self.service, silence)

    def lost(self, text: str, *, remedy: str = "", silent: bool = True, since: float | None = None) -> ConnectionLost:
        """The error of the session's end. ``silent``: the service was, ``since`` then if that is known."""
        error = ConnectionLost(text, remedy=remedy)
        error.silent, error.silent_since = silent, since
        return error
