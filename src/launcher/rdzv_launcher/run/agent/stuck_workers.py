"""Workers that the kernel does not let go: in uninterruptible sleep (state D of Linux) for longer than is believable.

As in torch's agent, the time is TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT, and nothing is looked at without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from rdzv_launcher.run.agent.events import Stuck
from rdzv_plugins.linux.process_stat import read_stat

logger = logging.getLogger(__name__)

_LONGEST_LOOK_S = 1.0


def process_state(pid: int) -> str:
    """One letter, as in /proc/PID/stat; "" where it cannot be read."""
    stat = read_stat(pid)
    return "" if stat is None else stat.state


class StuckWorkers:
    """Looks at the workers of one generation after the other. One thread."""

    def __init__(self, timeout: float, state_of: Callable[[int], str] = process_state) -> None:
        """``timeout`` in seconds; 0: it looks at nothing. Times that it is given count from anywhere."""
        self._timeout = timeout
        self._state_of = state_of
        self._since: dict[int, float] = {}

    def look_at(self, now: float) -> float | None:
        """When ``look`` should be called the next time, having been called ``now``; None: never."""
        return now + min(self._timeout / 4, _LONGEST_LOOK_S) if self._timeout > 0 else None

    def look(self, pids: Mapping[int, int], now: float) -> Stuck | None:
        """A worker, of ``pids`` by local rank, that has been stuck for too long in all looks of that time."""
        asleep = {pid: rank for rank, pid in pids.items() if self._timeout > 0 and self._state_of(pid) == "D"}
        for pid in asleep.keys() - self._since.keys():
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
