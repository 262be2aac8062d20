"""What is answered to whom: the paths, their status and their sentence. No sockets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from rdzv_launcher.run.health.pulse import Pulse

logger = logging.getLogger(__name__)

ALIVE, READY = "/healthz", "/readyz"
_OK, _NOT_FOUND, _UNAVAILABLE = 200, 404, 503


@dataclass(frozen=True)
class Answer:
    """A status of HTTP, and a sentence for people."""

    status: int
    text: str


class Health:
    """One agent's. Any thread may ask it."""

    def __init__(self, pulse: Pulse, patience: float) -> None:
        """``patience``: for so many seconds the main thread may be later than it has said."""
        self._pulse, self._patience = pulse, patience
        self._readiness: Callable[[], tuple[bool, str]] = lambda: (False, "this node is about to join the others")

    def tell_by(self, readiness: Callable[[], tuple[bool, str]]) -> None:
        """From now on ``readiness`` says whether the workers work, and in a sentence what is going on. Any thread."""
        self._readiness = readiness

    def answer(self, path: str) -> Answer:
        """The answer to a request for ``path``."""
        path = path.partition("?")[0]
        if path == ALIVE:
            return self._alive()
        if path == READY:
            ready, text = self._state()
            return Answer(_OK if ready else _UNAVAILABLE, text)
        return Answer(_NOT_FOUND, f"there are {ALIVE} and {READY}")

    def _alive(self) -> Answer:
        overdue = self._pulse.overdue()
        if overdue > self._patience:
            place = self._pulse.place()
            where = f", at {place}" if place else ""
            return Answer(_UNAVAILABLE, f"the agent's main thread has stood still for {overdue:.0f} s{where}")
        return Answer(_OK, f"alive: {self._state()[1]}")

    def _state(self) -> tuple[bool, str]:
        try:
            return self._readiness()
        except Exception as error:  # a plug-in's, which is asked what it waits for: the agent lives nevertheless
            logger.debug("the state of this agent cannot be told", exc_info=True)
            return False, f"what this agent waits for cannot be told: {type(error).__name__}: {error}"
