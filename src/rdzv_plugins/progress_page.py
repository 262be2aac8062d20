"""When each worker of a node last reported progress: numbers that workers write and their agent reads.

Reporting progress means writing one number, so a training script can do that in every step.
"""

from __future__ import annotations

import os

from rdzv_plugins.clock import now_ns
from rdzv_plugins.shared_numbers import SharedNumbers, open_numbers

VARIABLE = "RDZV_PROGRESS"
"""The variable in a worker's environment: the path of the page, its size in bytes, and its place there, separated by
commas."""

_WIDTH = 8
_page: tuple[str, memoryview | None, int] = ("", None, 0)


def progress() -> None:
    """Say that this worker makes progress. Takes about a microsecond; from its first call on only that counts.

    For ``rdzv-run --hang-timeout``: call it in every step, and in whatever else takes long, evaluation and
    checkpoints among them. Does nothing outside of rdzv-run, without that option, and for a process that may not write
    to its agent's memory (it runs as another user). Raises nothing. Thread-safe; a forked child speaks for its worker.
    """
    global _page
    told = os.environ.get(VARIABLE, "")
    if told != _page[0]:
        _page = (told, *_open(told))
    _, numbers, place = _page
    if numbers is not None:
        numbers[place] = now_ns()


def _open(told: str) -> tuple[memoryview | None, int]:
    try:
        path, size, place = told.rsplit(",", 2)
        return open_numbers(path, int(size), write=True), int(place)
    except (OSError, ValueError):  # outside rdzv-run, or another user
        return None, 0


class ProgressPage(SharedNumbers):
    """The page as the agent sees it. Thread-safe: each number is written and read as a whole."""

    def __init__(self, workers: int) -> None:
        """``workers`` are the workers of this node."""
        super().__init__("rdzv-progress", workers * _WIDTH)
        self._workers = workers

    def environment(self, global_rank: int) -> dict[str, str]:
        """Variables for a worker that is about to be started; resets its entry, as it has not reported anything yet."""
        place = global_rank % self._workers
        self[place] = 0
        return {VARIABLE: f"{self.path},{self._workers * _WIDTH},{place}"}

    def said_at(self, global_rank: int) -> int:
        """When a worker of this node last reported progress, in nanoseconds of its clock; 0 if never."""
        return self[global_rank % self._workers]
