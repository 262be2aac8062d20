"""What the user has set for an agent's decisions, and how long things may take."""

from __future__ import annotations

from msgspec import Struct

from rdzv_launcher.run.keeper.keeper import LONGEST_KILL_S
from rdzv_plugins.runtime import Signals

_STOP_S, _LEAVE_S = 10.0, 2.0
"""The most time of a grace that is kept for ending the workers, and for telling the others."""


class Limits(Struct, frozen=True):
    """The limits of one agent. Times are in seconds."""

    workers: int
    """The number of workers of this node."""
    max_restarts: int = 0
    shutdown_timeout: float = 30.0
    """How long workers may take to end when told to; after that they are killed."""
    kill_timeout: float = LONGEST_KILL_S + 5.0
    """How long killed workers may take to end, longer than it takes to end a keeper that stands still, too. After that
    they are stuck in the kernel.
    """
    leave_background: bool = False
    """What workers have started in sessions of its own is left to itself when this node ends."""
    preempt_grace: float = 0.0
    """How long this node has left from a notice on; 0: there are no notices."""
    notice_signals: frozenset[Signals] = frozenset()
    """The signals that count as a notice, if there is a grace."""

    @property
    def time_to_end(self) -> float:
        """Seconds from a notice until the remaining workers are killed; the rest is for telling the others."""
        return self.preempt_grace - min(_LEAVE_S, self.preempt_grace / 10)

    @property
    def time_to_save(self) -> float:
        """Seconds from a notice in which workers may save; after that they have to be told to end."""
        return self.time_to_end - min(self.shutdown_timeout, _STOP_S, self.preempt_grace / 5)
