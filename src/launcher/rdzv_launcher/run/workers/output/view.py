"""How lines of a worker's file become lines on our own streams: unchanged, or folded with those of other workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rdzv_launcher.run.workers.output.console import Console
from rdzv_launcher.run.workers.output.fold import Fold
from rdzv_launcher.run.workers.output.lines import OpenLine
from rdzv_launcher.run.workers.output.stamps import split, stamp


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
            self.console.write("".join([then(ranks, time + prefix, line) for time, line in self._stamped(lines)]))

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


def stamped_by(*, screen: bool, files: bool) -> Stamped:
    """``screen``: times are shown; ``files``: the lines in the files have one already."""

    def stamps(lines: Sequence[str]) -> Sequence[tuple[str, str]]:
        now = stamp() if screen else ""
        if files:  # what follows a carriage return has no time there
            return [(time or now if screen else "", line) for time, line in map(split, lines)]
        return [(now, line) for line in lines]

    return stamps
