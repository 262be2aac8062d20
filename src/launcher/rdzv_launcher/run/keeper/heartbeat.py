"""Whether the keeper answers: asked about once a second, and judged only by the time in which the agent itself ran."""

from __future__ import annotations

from collections.abc import Callable

BEAT_S = 1.0
"""How long nothing may be heard before a question is asked."""
STOPPED_S = 4.0
"""How long a question may be unanswered before it is looked whether the keeper has been stopped by a signal."""
SILENT_S = 10.0
"""How long it may be unanswered altogether: the keeper never waits for anybody, so it needs no longer than the kernel
takes to let it run, even on a machine that swaps.
"""


class RunningTime:
    """A clock, in seconds, that stands still while this process does: it knows of no more than two beats at once.

    So it has to be read at least once in a beat, while somebody waits.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._seen, self._ran = now(), 0.0

    def __call__(self) -> float:
        """The seconds for which this process has run."""
        now = self._now()
        self._ran += min(max(0.0, now - self._seen), 2 * BEAT_S)
        self._seen = now
        return self._ran


class Heartbeat:
    """One keeper's. Whatever is heard from it is a sign of life, and not only an answer."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard = clock()
        self._asked: float | None = None
        self._taken = False

    @property
    def due(self) -> bool:
        """It is time to ask."""
        if self._asked is not None:
            return not self._taken
        return self._clock() - self._heard >= BEAT_S

    def asked(self, taken: bool) -> None:
        """The question has been asked; not ``taken``: its end of the channel is full, so it has to be asked again."""
        self._taken = taken
        if self._asked is None:
            self._asked = self._clock()

    def heard(self) -> None:
        """Something has been heard from the keeper."""
        self._heard, self._asked, self._taken = self._clock(), None, False

    @property
    def unanswered(self) -> float:
        """For how many seconds the question has been unanswered; 0: there is none."""
        return 0.0 if self._asked is None else self._clock() - self._asked
