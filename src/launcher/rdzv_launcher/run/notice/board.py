"""What this node's workers are shown about a notice, and what they report themselves: a page, a file, a signal."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping

from rdzv_launcher.run.notice.wire import Report, Word
from rdzv_plugins.clock import now_ns
from rdzv_plugins.notice_page import (
    AT,
    DEADLINE,
    FILE,
    FIRST,
    LIMIT,
    MOST_STEPS,
    NODE,
    NUMBER,
    ROUND,
    SAVED,
    SEEN_S,
    START,
    VALID_S,
    VARIABLE,
    WIDTH,
    size_of,
)
from rdzv_plugins.shared_numbers import SharedNumbers

logger = logging.getLogger(__name__)

_LATE_S = 3.0
"""A deadline later than that of a finished notice by no more than this may belong to the same notice, heard late."""


class Board:
    """What this node's workers are shown of a notice, and what they report. One per agent. Thread-safe.

    What was shown is cleared by the next start of the workers.
    """

    def __init__(self, workers: int, directory: str) -> None:
        """``workers`` is the number on this node; ``directory`` is the agent's own, for the file."""
        self._slots = range(FIRST, FIRST + WIDTH * workers, WIDTH)
        self._page = SharedNumbers("rdzv-notice", size_of(workers))
        self._size = size_of(workers)
        self._file = os.path.join(directory, "notice.json")
        self._lock = threading.RLock()
        self._reason = ""
        self._proposed_at = 0.0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within this context, no other thread changes anything, and no new start begins."""
        with self._lock:
            yield

    def environment(self, start: int, round_: int, place: int) -> Mapping[str, str]:
        """Variables of a start for the worker with this place on the node; the first of a start clears the board."""
        with self._lock:
            if self._page[START] != start:
                self._clear(start, round_)
        where = f"{self._page.path},{self._size},{start},{self._slots[place]}"
        return {VARIABLE: where, FILE: self._file}

    def _clear(self, start: int, round_: int) -> None:
        self._page[NUMBER] = 0  # first: whoever looks meanwhile sees none
        for slot in self._slots:
            self._page[slot + AT], self._page[slot + SAVED] = -1, 0
        self._page[LIMIT] = self._page[DEADLINE] = self._page[NODE] = 0
        self._page[ROUND] = round_
        self._page[START] = start
        if os.path.exists(self._file):
            os.unlink(self._file)

    @property
    def round(self) -> int:
        """The number of the round in which workers were last started."""
        return self._page[ROUND]

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline of the notice; 0 without one, or when it has passed."""
        return max(0.0, (self._page[DEADLINE] - now_ns()) / 1e9) if self._page[NUMBER] else 0.0

    @property
    def agreed(self) -> int:
        """The step on which all have agreed, as far as this node knows; 0: none."""
        return max(0, int(self._page[LIMIT]))

    def show(self, word: Word) -> bool:
        """Show the notice. True for a new one: there was none before in this round, or its time is over.

        The earlier deadline wins.
        """
        with self._lock:
            page = self._page
            deadline = now_ns() + int(word.seconds * 1e9)
            over = self.seconds_left == 0 and deadline > page[DEADLINE] + int(_LATE_S * 1e9)
            first = page[NUMBER] == 0 or over
            if not first and (word.do != "tell" or page[DEADLINE] <= deadline) and self.seconds_left > 0:
                return False
            if first:
                self._reason, page[NODE], page[LIMIT] = word.reason, word.node, 0
                for slot in self._slots:
                    page[slot + SAVED] = 0
            page[DEADLINE] = deadline
            self._write()
            page[NUMBER] += 1
            return first

    def propose(self, step: int) -> bool:
        """Show a step as proposed. False if a worker has passed it, or another one is already agreed on."""
        with self._lock:
            page = self._page
            if page[LIMIT] > 0:
                return page[LIMIT] == step
            accepts = self._at() < step
            if accepts:
                page[LIMIT], self._proposed_at = -step, time.monotonic()
                time.sleep(SEEN_S)
                accepts = self._at() < step
            if not accepts:
                page[LIMIT] = 0  # the answer may be lost: nothing that was refused may be agreed on
            return accepts

    def agree(self, step: int) -> bool:
        """All have agreed on the proposed step; False if another one was proposed, or it was too long ago."""
        with self._lock:
            if self._page[LIMIT] != -step or time.monotonic() >= self._proposed_at + VALID_S:
                return self._page[LIMIT] == step
            self._page[LIMIT] = step
            self._write()
            self._page[NUMBER] += 1
            return True

    def drop(self, step: int) -> None:
        """Withdraw a proposal: nothing comes of it."""
        with self._lock:
            if self._page[LIMIT] == -step:
                self._page[LIMIT] = 0

    def report(self, leaving: bool, accepts: bool) -> Report:
        """Which steps the workers say that they have done."""
        page, limit = self._page, max(0, self._page[LIMIT])
        told = [slot for slot in self._slots if page[slot + AT] >= 0 or page[slot + SAVED]]
        saved = [slot for slot in told if page[slot + SAVED]]
        return Report(page[ROUND], self._at(), limit, len(told) - len(saved), len(saved), leaving, accepts)

    def close(self) -> None:
        """Stop showing anything."""
        self._page[NUMBER] = 0
        self._page.close()

    def _at(self) -> int:
        """How far the furthest worker is; a worker may write anything."""
        return min(max(-1, *(self._page[slot + AT] for slot in self._slots)), MOST_STEPS - 1)

    def _write(self) -> None:
        """Write the file, so that it is complete whenever somebody looks."""
        page = self._page
        data = {
            "reason": self._reason,
            "deadline": time.time() + (page[DEADLINE] - now_ns()) / 1e9,
            "node": page[NODE],
            "round": page[ROUND],
            "step": max(0, page[LIMIT]) or None,
        }
        try:
            with open(f"{self._file}.new", "w") as file:
                json.dump(data, file)
            os.replace(f"{self._file}.new", self._file)
        except OSError as error:
            logger.warning("the workers cannot be told by a file (%s): %s", self._file, error.strerror)
