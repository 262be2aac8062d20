"""Workers that the kernel does not release: in uninterruptible sleep (state D of Linux) for implausibly long.

As in torch's agent, the time is TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT; if it is not set, nothing is looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from rdzv_launcher.run.agent.events import Stuck
from rdzv_plugins.linux.process_stat import read_stat

logger = logging.getLogger(__name__)

_LONGEST_LOOK_S = 1.0


def process_state(pid: int) -> str:
    """One letter, as in /proc/PID/stat; "" if it cannot be read."""
    stat = read_stat(pid)
    return "" if stat is None else stat.state


class StuckWorkers:
    """Looks at the workers of one generation after another. For one thread."""

    def __init__(self, timeout: float, state_of: Callable[[int], str] = process_state) -> None:
        """``timeout`` is in seconds; 0: it looks at nothing. The times passed in may count from any starting point."""
        self._timeout = timeout
        self._state_of = state_of
        self._since: dict[int, float] = {}

    def look_at(self, now: float) -> float | None:
        """When ``look`` should be called next, having been called at ``now``; None: never."""
        return now + min(self._timeout / 4, _LONGEST_LOOK_S) if self._timeout > 0 else None

    def look(self, pids: Mapping[int, int], now: float) -> Stuck | None:
        """A worker, of ``pids`` by local rank, that was stuck for too long, in all looks of that time; None if none."""
        asleep = {pid: rank for rank, pid in pids.items() if self._timeout > 0 and self._state_of(pid) == "D"}
        for pid in [each for each in asleep if each not in self._since]:
            logger.warning(
                "worker %d (pid %d) is in uninterruptible sleep: after %g s this node ends",
                *(asleep[pid], pid),
                self._timeout,
            )
        self._since = {pid: self._since.get(pid, now) for pid in asleep}
        for pid, since in self._since.items():
            if now - since >= self._timeout:
                return Stuck(asleep[pid], pid, now - since)
        return None
