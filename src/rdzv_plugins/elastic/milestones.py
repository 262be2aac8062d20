"""What happens to this node's rounds, for anything that keeps a timeline: each event once, when it is known."""

from __future__ import annotations

from rdzv_plugins.elastic.view import View
from rdzv_plugins.interfaces import RoundEvent, TellEvent
from rdzv_plugins.runtime import Runtime


class Milestones:
    """Tells what happens to this node's rounds. Costs nothing until ``tell_to`` is called. Thread-safe."""

    def __init__(self, view: View, runtime: Runtime) -> None:
        self._view = view
        self._tell: TellEvent | None = None
        self._lock = runtime.Lock()
        self._placed = self._complete = self._over = 0

    def tell_to(self, tell: TellEvent) -> None:
        """Call ``tell`` from now on; see ``TellEvent``."""
        self._tell = tell

    def tell(self, event: RoundEvent) -> None:
        """Report what this node has done itself. Called before it tells the others."""
        if self._tell is not None:
            self._tell(event)

    def hear(self) -> None:
        """Report what is new in the service's news; it concerns this node's rounds only. Returns at once."""
        if self._tell is None:
            return
        with self._lock:
            place, declared, over = self._view.assignment, self._view.round, self._view.over
            if self._over < over.number <= self._placed:
                self._over = over.number
                self.tell(RoundEvent("over", over.number, reason=over.reason, cause=over.cause))
            if place is None or not place.is_place:
                return
            if place.round > self._placed:
                self._placed = place.round
                self.tell(RoundEvent("placed", place.round, place.rank, place.world))
            if declared.state == "complete" and self._complete < declared.number == place.round:
                self._complete = place.round
                self.tell(RoundEvent("complete", place.round, place.rank, place.world))
