"""A few numbers that an agent shares with its workers and its keeper: for how long the round holds.

They are in memory that both sides have mapped, so a reader just looks, and asks nobody.
"""

from __future__ import annotations

import os
import sys

from rdzv_plugins.shared_numbers import SharedNumbers

VARIABLE = "RDZV_ROUND_HOLDS"
"""The variable in a worker's environment: the path of the page, a comma, and the number of its start."""

START, UNTIL, BEAT, STATE, PAUSE_AT, STILL = range(6)
"""Places in the page.

START: how often workers have been started; UNTIL: the round holds until then, 0 when it is over; BEAT: when the agent
last looked; STATE: see below; PAUSE_AT: from then on, workers of an agent that has stood still for STILL are paused.
Times are in nanoseconds of ``clock.now_ns``.
"""
IDLE, RUNNING, PAUSED, ENDED = range(4)
"""States: there are no workers; they run; they are paused until it is known whether the session lives; it has ended."""
NEVER = 2**63 - 1
SIZE = 64
_WIDTH = 8


class RoundPage(SharedNumbers):
    """The page as the agent sees it: ``page[UNTIL] = ...``. Thread-safe."""

    def __init__(self) -> None:
        super().__init__("rdzv-round", SIZE)
        self[PAUSE_AT] = NEVER

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the workers of the present start."""
        return {VARIABLE: f"{self.path},{self[START]}"}

    def close(self) -> None:
        """Release the page: no round holds any more."""
        self[UNTIL] = self[STATE] = 0
        super().close()


def read(fd: int) -> list[int]:
    """All numbers of a page, for a process that has only its descriptor."""
    data = os.pread(fd, SIZE, 0)
    return [int.from_bytes(data[at : at + _WIDTH], sys.byteorder, signed=True) for at in range(0, SIZE, _WIDTH)]
