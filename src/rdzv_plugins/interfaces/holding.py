"""How long a node's round is sure to hold, for the fence around its workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Holding(Protocol):
    """How long a node's round is sure to hold: an optional attribute of a handler, named ``holding``.

    Reading it sends nothing. Thread-safe.
    """

    @property
    def ttl(self) -> float:
        """Seconds without a sign of life after which the service counts a node as lost."""
        ...

    def until(self) -> float:
        """The time until which the round is sure to hold, as ``rdzv_plugins.clock.now`` counts; 0 when it is over.

        Infinite for a session that cannot say.
        """
        ...

    def ended(self) -> bool:
        """True once the session with which this node joined its round is known to have ended."""
        ...

    def sure(self) -> bool:
        """True if the session with which this node joined is known to live now, so nobody else acts in its place."""
        ...

    def confirm(self, timeout: float) -> bool:
        """Ask the service, for at most ``timeout`` seconds; True if its answer shows that the session lives."""
        ...

    def wait_for_news(self, timeout: float) -> None:
        """Return when something may have changed, or after ``timeout`` seconds."""
        ...

    def on_news(self, call: Callable[[], None] | None) -> None:
        """Register a function that gets all news of a round before anybody else does. It returns at once."""
        ...
