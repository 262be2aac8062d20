"""Node rank 0's part: all nodes agree on the step that they save, and those that go hear when that is done.

Where the workers are, is asked; then a step beyond that is proposed. A node accepts it unless a worker of it has come
further; workers that arrive there wait. When all nodes that answer have accepted, it is agreed on; else a later one is
proposed, twice as far ahead each time: steps may be faster than questions. See ``rdzv_plugins.notice_page``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from rdzv_launcher.run.notice.wire import Report, Word

logger = logging.getLogger(__name__)

Ask = Callable[[Word, float], tuple[list[Report], int]]

_TRIES = 16
_ANSWER_S = 3.0
_FIRST_PAUSE_S, _PAUSE_S, _GROWTH = 0.05, 1.0, 1.5
_LATER = 30
"""Looks are rarer the longer it takes: each after a thirtieth of the time so far, at least."""


class Agreement(threading.Thread):
    """One for each start of the workers in which there is a notice."""

    def __init__(
        self,
        word: Word,
        generation: int,
        ask: Ask,
        seconds_left: Callable[[], float],
        least: int,
        may_agree: bool,
    ) -> None:
        """``least``: so many of the nodes that ``ask`` knows of are needed, or the job cannot go on.

        ``may_agree`` False: not all nodes of the round can be asked, so there is no step for all.
        """
        super().__init__(name="rdzv-notice-agreement", daemon=True)
        self._word, self._generation = word, generation
        self._ask_all, self._seconds_left = ask, seconds_left
        self._least, self._may_agree = least, may_agree
        self._stopped = threading.Event()

    def is_of(self, generation: int) -> bool:
        """It is the one for this start, and at work."""
        return self._generation == generation and self.is_alive()

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()

    def run(self) -> None:
        """Until the deadline."""
        said: tuple[bool, bool, int] | None = None
        pause, waited = _FIRST_PAUSE_S, 0.0
        while (left := self._seconds_left()) > 0 and not self._stopped.is_set():
            reports, others = self._ask(self._word)
            if self._may_agree and any(each.at >= 0 for each in reports) and not any(each.agreed for each in reports):
                self._agree(reports)
                continue
            leaving = sum(each.leaving for each in reports)
            go_on = len(reports) + others - leaving >= self._least
            saved = any(each.saved for each in reports) and not any(each.waiting for each in reports)
            if leaving and said != (go_on, saved, leaving):
                said = go_on, saved, leaving
                self._ask(replace(self._word, do="over", go_on=go_on, saved=saved))
            self._stopped.wait(min(pause, left))
            waited += pause
            pause = max(min(pause * _GROWTH, _PAUSE_S), waited / _LATER)

    def _agree(self, reports: list[Report]) -> None:
        ahead = 1
        for _ in range(_TRIES):
            step = max(each.at for each in reports) + ahead
            reports, _ = self._ask(replace(self._word, do="propose", step=step))
            if reports and all(each.accepts for each in reports):
                self._ask(replace(self._word, do="agree", step=step))
                return
            if not reports or self._stopped.is_set():
                break
            ahead *= 2
        self._ask(replace(self._word, do="drop", step=step))
        self._may_agree = False
        logger.warning("the nodes could not agree on a step that all save: the notice names none")

    def _ask(self, word: Word) -> tuple[list[Report], int]:
        left = self._seconds_left()
        return self._ask_all(replace(word, seconds=left), max(0.1, min(_ANSWER_S, left / 5)))
