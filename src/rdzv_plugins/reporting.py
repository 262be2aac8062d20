"""When a waiting node reports again what it waits for."""

from __future__ import annotations

from rdzv_plugins.runtime import SYSTEM, Runtime

EVERY_S = 10.0
"""Seconds between two reports of one wait."""
_LONGEST_S = 600.0


class Reporting:
    """The schedule of one wait's reports: every ten seconds, or at intervals that grow up to ten minutes.

    One thread.
    """

    def __init__(self, *, first: float = EVERY_S, grows: bool = False, runtime: Runtime = SYSTEM) -> None:
        """``first`` is the number of seconds until the first report."""
        self._monotonic = runtime.monotonic
        self._pause = EVERY_S
        self._grows = grows
        self.next_at = self._monotonic() + first
        """When ``is_due`` becomes true, in the monotonic clock's seconds."""

    def is_due(self) -> bool:
        """Whether it is time for a report; if so the caller makes it, and the next one is due later."""
        now = self._monotonic()
        if now < self.next_at:
            return False
        self.next_at = now + self._pause
        if self._grows:
            self._pause = min(2 * self._pause, _LONGEST_S)
        return True
