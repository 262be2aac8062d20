"""What several workers print alike within a moment is shown once: ``[ranks 0-7] epoch 3``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from rdzv_launcher.run.rank_names import named

WINDOW_S = 0.15
"""So long a line waits for the same one of other workers."""
_AHEAD = 16
"""So far behind its head is looked in a worker's lines for the one that is about to be shown."""
_MOST = 20_000
"""So many lines wait; with more of them none does."""


_Line = tuple[str, float, str]
"""Its text, when it came, and what stands in front of all else: a tuple, as there may be many."""


class Fold:
    """One stream of this node's workers. For one thread. Every line is shown, those of one worker in their order.

    A line is shown with those of all workers that have the same one next, as soon as all have it, or when it has waited
    for ``WINDOW_S``. Workers that have other lines before it show these first.
    """

    def __init__(
        self,
        prefixes: Mapping[int, str],
        write: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        ranks: Mapping[int, int] | None = None,
    ) -> None:
        """``prefixes``: what stands before a line that one worker alone has, by local rank, of all that are shown.

        ``ranks``: the global ones by local rank, where they are others. Nothing depends on them but the text: plug-ins
        may set RANK to anything, to the same for two.
        """
        self._prefixes, self._write, self._clock, self._ranks = prefixes, write, clock, ranks or {}
        self._waiting: dict[int, deque[_Line]] = {each: deque() for each in sorted(prefixes)}

    def take(self, local_rank: int, lines: Iterable[tuple[str, str]]) -> None:
        """Lines of one worker, each as what stands in front of all else, and its text with its end."""
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
            return f"{taken[0][2]}{self._prefixes[alike[0]]}{text}"
        ranks = [self._ranks.get(each, each) for each in alike]
        return f"{min(line[2] for line in taken)}[{named(ranks)}] {text}"


def _before(lines: deque[_Line], text: str) -> int:
    """How many other lines a worker has before this one; 0 if it does not have it."""
    if not lines or lines[0][0] == text:
        return 0
    return next((place for place, line in enumerate(islice(lines, _AHEAD)) if line[0] == text), 0)


def _when(line: _Line) -> float:
    return line[1]
