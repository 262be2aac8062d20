"""Numbers in memory that an agent and its workers have both mapped: a reader just looks, and asks nobody.

There are three pages of them: for how long the round holds, which the supervisor has, too; when each worker last
reported progress; and that of a notice, which ``preemption`` describes. The memory has no name in any file system:
workers open it as ``/proc/AGENT/fd/N``, and nothing of it remains when the agent has gone. Without memfd (not Linux,
or forbidden) it is a temporary file.
"""

from __future__ import annotations

import functools
import mmap
import os

from rdzv_plugins.clock import now_ns

_WIDTH = 8
"""Bytes of each number."""


class SharedNumbers:
    """The agent's side: ``numbers[place] = ...``. Each number is read and written as a whole. Thread-safe."""

    def __init__(self, name: str, size: int) -> None:
        """``size`` is in bytes, 8 for each number; all are 0 at first."""
        self._named = False
        try:
            if not os.path.exists("/proc/self/fd"):
                raise FileNotFoundError
            self.fd = os.memfd_create(name)
            self.path = f"/proc/{os.getpid()}/fd/{self.fd}"
        except (AttributeError, OSError):
            import tempfile  # slow to import, and not needed elsewhere

            self.fd, self.path = tempfile.mkstemp(prefix=f"{name}-")
            self._named = True
        os.ftruncate(self.fd, size)
        self._numbers = memoryview(mmap.mmap(self.fd, size)).cast("q")

    def __getitem__(self, place: int) -> int:
        return int(self._numbers[place])

    def __setitem__(self, place: int, value: int) -> None:
        self._numbers[place] = value

    def close(self) -> None:
        """Release them; processes that have them mapped can still read them."""
        os.close(self.fd)
        if self._named:
            os.unlink(self.path)


@functools.cache
def open_numbers(path: str, size: int, *, write: bool = False) -> memoryview:
    """A worker's side: the numbers under ``path``, opened once.

    Raises ``PermissionError``, and ``FileNotFoundError`` if the agent has gone, which is found out each time.
    """
    fd = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
        return memoryview(mmap.mmap(fd, size, prot=protection)).cast("q")
    finally:
        os.close(fd)


ROUND_VARIABLE = "RDZV_ROUND_HOLDS"
"""The variable in a worker's environment: the path of the round's page, a comma, and the number of its start."""

START, UNTIL, BEAT, STATE, PAUSE_AT, STILL = range(6)
"""Places in that page.

START: how often workers have been started; UNTIL: the round holds until then, 0 when it is over; BEAT: when the agent
last looked; STATE: see below; PAUSE_AT: from then on, workers of an agent that has stood still for STILL are paused.
Times are in nanoseconds of ``clock.now_ns``.
"""
IDLE, RUNNING, PAUSED, ENDED = range(4)
"""States: there are no workers; they run; they are paused until it is known whether the session lives; it has ended."""
NEVER = 2**63 - 1
ROUND_SIZE = 64
"""Of that page, in bytes."""


class RoundPage(SharedNumbers):
    """The round's page as the agent sees it: ``page[UNTIL] = ...``. Thread-safe."""

    def __init__(self) -> None:
        super().__init__("rdzv-round", ROUND_SIZE)
        self[PAUSE_AT] = NEVER

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the workers of the present start."""
        return {ROUND_VARIABLE: f"{self.path},{self[START]}"}

    def close(self) -> None:
        """Release the page: no round holds any more."""
        self[UNTIL] = self[STATE] = 0
        super().close()


def read_round(fd: int) -> list[int]:
    """All numbers of a round's page, for a process that has only its descriptor."""
    return memoryview(os.pread(fd, ROUND_SIZE, 0)).cast("q").tolist()


PROGRESS_VARIABLE = "RDZV_PROGRESS"
"""The variable in a worker's environment: the path of the page, its size in bytes, and its place there, separated by
commas."""

_page: tuple[str, memoryview | None, int] = ("", None, 0)


def progress() -> None:
    """Say that this worker makes progress. Takes about a microsecond; from its first call on only that counts.

    For ``rdzv-run --hang-timeout``: call it in every step, and in whatever else takes long, evaluation and
    checkpoints among them. Does nothing outside of rdzv-run, without that option, and for a process that may not write
    to its agent's memory (it runs as another user). Raises nothing. Thread-safe; a forked child speaks for its worker.
    """
    global _page
    told = os.environ.get(PROGRESS_VARIABLE, "")
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
    """The page of progress as the agent sees it. Thread-safe: each number is written and read as a whole."""

    def __init__(self, workers: int) -> None:
        """``workers`` are the workers of this node."""
        super().__init__("rdzv-progress", workers * _WIDTH)
        self._workers = workers

    def environment(self, global_rank: int) -> dict[str, str]:
        """Variables for a worker that is about to be started; resets its entry, as it has not reported anything yet."""
        place = global_rank % self._workers
        self[place] = 0
        return {PROGRESS_VARIABLE: f"{self.path},{self._workers * _WIDTH},{place}"}

    def said_at(self, global_rank: int) -> int:
        """When a worker of this node last reported progress, in nanoseconds of its clock; 0 if never."""
        return self[global_rank % self._workers]
