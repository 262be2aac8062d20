"""Where events go. If that is slow, stuck or full, the agent does not care."""

from __future__ import annotations

from typing import Protocol

from rdzv_launcher.run.timeline.record import Record


class Sink(Protocol):
    """Takes events in order, on a separate thread. It may block there; exceptions that it raises are ignored."""

    def take(self, record: Record) -> None:
        """Take one event."""
        ...

    def close(self) -> None:
        """The agent ends: nothing comes after this."""
        ...
