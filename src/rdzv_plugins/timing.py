"""How long something may take that has no limit of its own, when it is tried again, and when a wait is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from rdzv_plugins.runtime import SYSTEM, Empty, Runtime

if TYPE_CHECKING:
    from queue import SimpleQueue
    from random import Random

T = TypeVar("T")

EVERY_S = 10.0
"""Seconds between two reports of one wait."""
_LONGEST_S = 600.0


class Reporting:
    """The schedule of one wait's reports: every ten seconds, or at intervals that grow up to ten minutes.

    One thread.
    """

    def __init__(self, *, first: float = EVERY_S, grows: bool = False, runtime: Runtime = SYSTEM) -> None:
        """``first`` is the number of seconds until the first report."""
        self._monotonic = runtime.monotonic
        self._pause = EVERY_S
        self._grows = grows
        self.next_at = self._monotonic() + first
        """When ``is_due`` becomes true, in the monotonic clock's seconds."""

    def is_due(self) -> bool:
        """Whether it is time for a report; if so the caller makes it, and the next one is due later."""
        now = self._monotonic()
        if now < self.next_at:
            return False
        self.next_at = now + self._pause
        if self._grows:
            self._pause = min(2 * self._pause, _LONGEST_S)
        return True


def growing(first: float, longest: float, *, factor: float = 1.5, random: Random | None = None) -> Iterator[float]:
    """The pauses between attempts, in seconds: each ``factor`` times as long as the last, and never over ``longest``.

    With ``random`` each is shortened by up to a half, so that many nodes do not all come again at once.
    """
    pause = first
    while True:
        yield pause if random is None else pause * random.uniform(0.5, 1.0)
        pause = min(pause * factor, longest)


def within(seconds: float, call: Callable[[], T], name: str, runtime: Runtime = SYSTEM) -> T:
    """Return or raise what ``call`` does; ``TimeoutError`` if that takes longer, and then it goes on by itself.

    For what the system sets no limit on, such as the resolver or a file system. ``name`` is that of the thread.
    """
    answers: SimpleQueue[tuple[T | None, Exception | None]] = runtime.SimpleQueue()

    def run() -> None:
        try:
            answers.put((call(), None))
        except Exception as error:
            answers.put((None, error))

    runtime.Thread(target=run, name=name).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]
