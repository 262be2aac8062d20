"""Where events go. What is slow, stuck or full there is no matter of the agent."""

from __future__ import annotations

from typing import Protocol

from rdzv_launcher.run.timeline.record import Record


class Sink(Protocol):
    """Takes events in their order, on one thread of its own. It may block there; what it raises is ignored."""

    def take(self, record: Record) -> None:
        """One event."""
        ...

    def close(self) -> None:
        """The agent ends: nothing comes after this."""
        ...
