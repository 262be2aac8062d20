"""How lines of a worker's file become lines on our own streams: unchanged, or folded with those of other workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rdzv_launcher.run.workers.output.console import Console
from rdzv_launcher.run.workers.output.fold import Fold
from rdzv_launcher.run.workers.output.lines import OpenLine


class View(Protocol):
    """One of our streams, for all workers of a round that are shown there. For one thread."""

    @property
    def console(self) -> Console: ...

    def take(self, local_rank: int, lines: Sequence[str]) -> None:
        """Take lines of the worker with this local rank, as they are in its file; the last may lack its end so far."""

    def show(self, *, final: bool = False) -> float | None:
        """Show what is due (``final``: all there is); seconds until the next is due, None if nothing waits."""


class Plain:
    """Shows each line by itself, at once."""

    def __init__(
        self, console: Console, prefixes: Mapping[int, str], stamped: Stamped, ranks: Mapping[int, int] | None = None
    ) -> None:
        """``prefixes`` are by local rank; ``ranks`` are not used, since each line is of one worker."""
        self.console, self._prefixes, self._stamped = console, prefixes, stamped
        self._open = OpenLine()

    def take(self, local_rank: int, lines: Sequence[str]) -> None:
        prefix, then, ranks = self._prefixes[local_rank], self._open.then, (local_rank,)
        if lines:
            self.console.write("".join([then(ranks, stamp + prefix, line) for stamp, line in self._stamped(lines)]))

    def show(self, *, final: bool = False) -> float | None:
        return None


class Folded:
    """Shows lines that several workers print alike once."""

    def __init__(
        self, console: Console, prefixes: Mapping[int, str], stamped: Stamped, ranks: Mapping[int, int] | None = None
    ) -> None:
        """``prefixes``, and the global ``ranks`` that precede lines of several workers, are by local rank."""
        self.console, self._stamped = console, stamped
        self._fold = Fold(prefixes, console.write, ranks=ranks)

    def take(self, local_rank: int, lines: Sequence[str]) -> None:
        self._fold.take(local_rank, self._stamped(lines))

    def show(self, *, final: bool = False) -> float | None:
        return self._fold.show(final=final)


Stamped = Callable[[Sequence[str]], Sequence[tuple[str, str]]]
"""Gives, for each line of a file, what is shown in front of everything else, and the line itself."""


def with_time(lines: Sequence[str]) -> Sequence[tuple[str, str]]:
    """The time in UTC, so that the lines of many nodes can be sorted: ``2026-01-31T12:00:00.000Z``."""
    seconds = time.time()
    now = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(seconds % 1 * 1000):03d}Z "
    return [(now, line) for line in lines]


def without_time(lines: Sequence[str]) -> Sequence[tuple[str, str]]:
    """Nothing in front."""
    return [("", line) for line in lines]
