"""Lines that several workers print alike within a moment are shown once: ``[ranks 0-7] epoch 3``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from rdzv_launcher.run.rank_names import named
from rdzv_launcher.run.workers.output.lines import OpenLine

WINDOW_S = 0.15
"""How long a line waits for the same line from other workers."""
_AHEAD = 16
"""How far behind its head a worker's lines are searched for the one that is about to be shown."""
_MOST = 20_000
"""The most lines that wait; if there are more, none do."""


_Line = tuple[str, float, str]
"""The line's text, when it came, and what precedes everything else. A tuple, as there may be many."""


class Fold:
    """One stream of this node's workers. For one thread. Every line is shown, those of one worker in order.

    A line is shown together with those of all workers that have the same one next, as soon as all have it, or when it
    has waited for ``WINDOW_S``. Workers that have other lines before it show those first.
    """

    def __init__(
        self,
        prefixes: Mapping[int, str],
        write: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        ranks: Mapping[int, int] | None = None,
    ) -> None:
        """``prefixes``: what precedes a line that only one worker has, by local rank, for all workers that are shown.

        ``ranks``: the global ranks by local rank, if they differ. Only the text depends on them: plug-ins may set RANK
        to anything, even to the same value for two workers.
        """
        self._prefixes, self._write, self._clock, self._ranks = prefixes, write, clock, ranks or {}
        self._open = OpenLine()
        self._waiting: dict[int, deque[_Line]] = {each: deque() for each in sorted(prefixes)}

    def take(self, local_rank: int, lines: Iterable[tuple[str, str]]) -> None:
        """Take lines of one worker, each as what precedes everything else, and its text including its line end."""
        now = self._clock()
        self._waiting[local_rank].extend([(text, now, stamp) for stamp, text in lines])

    def show(self, *, final: bool = False) -> float | None:
        """Write what has waited long enough (``final``: all); seconds until the next is due, None if none waits."""
        every, shown = list(self._waiting.values()), list[str]()
        now, due = self._clock(), None
        at_once = final or sum(map(len, every)) > _MOST
        while heads := [lines[0] for lines in every if lines]:
            text, at, _ = min(heads, key=_when)
            if (
                at + WINDOW_S > now
                and not at_once
                and not (len(heads) == len(every) and all(head[0] == text for head in heads))
            ):
                due = at + WINDOW_S - now
                break
            for lines in every:
                for _ in range(_before(lines, text)):
                    shown.append(self._next(lines[0][0]))
            shown.append(self._next(text))
        if shown:
            self._write("".join(shown))
        return due

    def _next(self, text: str) -> str:
        """Take a line from all that have it next."""
        alike = [each for each, lines in self._waiting.items() if lines and lines[0][0] == text]
        taken = [self._waiting[each].popleft() for each in alike]
        if len(alike) == 1:
            head = f"{taken[0][2]}{self._prefixes[alike[0]]}"
        else:
            head = f"{min(line[2] for line in taken)}[{named([self._ranks.get(each, each) for each in alike])}] "
        return self._open.then(tuple(alike), head, text)


def _before(lines: deque[_Line], text: str) -> int:
    """How many other lines a worker has before this one; 0 if it does not have it."""
    if not lines or lines[0][0] == text:
        return 0
    return next((place for place, line in enumerate(islice(lines, _AHEAD)) if line[0] == text), 0)


def _when(line: _Line) -> float:
    return line[1]
