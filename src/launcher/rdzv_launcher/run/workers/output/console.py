"""How lines of a worker's file become lines on our own streams: unchanged, or folded with those of other workers.

Lines that several workers print alike within a moment are shown once: ``[ranks 0-7] epoch 3``.
"""

from __future__ import annotations

import codecs
import io
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from rdzv_launcher.console import stderr_has_room
from rdzv_launcher.run.names import named

_PIECE = 32 << 10
"""How many characters are written at once: if a piece is not taken as a whole, all of it is dropped."""


def _pieces(text: str) -> Iterator[str]:
    """Yield pieces, each ending with a line, unless the line is longer."""
    begin = 0
    while begin < len(text):
        end = begin + _PIECE
        if end < len(text):
            end = text.rfind("\n", begin, end) + 1 or end
        yield text[begin:end]
        begin = end


LONGEST = 256 * 1024
"""Characters after which text without a line end counts as a line: memory is not endless."""


class Lines:
    """Text of one stream; invalid UTF-8 is replaced. A carriage return also ends a line, as when Python reads files."""

    def __init__(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=True)
        self.unfinished = ""
        """The line whose end has not come yet, so far."""

    def feed(self, data: bytes, *, final: bool = False) -> list[str]:
        """The lines that are whole now, each with its end. ``final``: the last one is, too, whatever it lacks."""
        lines = io.StringIO(self.unfinished + self._decoder.decode(data, final), newline="\n").readlines()
        self.unfinished = lines.pop() if lines and not lines[-1].endswith("\n") else ""
        if len(self.unfinished) >= LONGEST or (final and self.unfinished):
            lines.append(f"{self.unfinished}\n")
            self.unfinished = ""
        return lines


class OpenLine:
    """The last line of a console, as long as its end has not come: a prompt. For one thread.

    What its worker writes next continues it. Anything else begins a line of its own.
    """

    def __init__(self) -> None:
        self._ranks: tuple[int, ...] = ()
        self._cut: set[int] = set()
        """The workers whose line was ended for the sake of another's."""

    def then(self, ranks: tuple[int, ...], head: str, text: str) -> str:
        """What to write for a line, or a piece of one, that the workers with these local ranks have written alike."""
        if self._ranks == ranks:
            shown = text
        elif text == "\n" and self._cut.issuperset(ranks):  # the end of what has been ended already
            shown = ""
        else:
            shown = ("\n" if self._ranks else "") + head + text
            self._cut.update(self._ranks)
        self._cut.difference_update(ranks)
        if shown:
            self._ranks = () if text.endswith("\n") else ranks
        return shown


WINDOW_S = 0.15
"""How long a line waits for the same line from other workers."""
_AHEAD = 16
"""How far behind its head a worker's lines are searched for the one that is about to be shown."""
_MOST = 20_000
"""The most lines that wait; if there are more, none do."""


_Line = tuple[str, float, str]
"""The line's text, when it came, and what precedes everything else. A tuple, as there may be many."""


class View:
    """Standard output or error, for all workers of a round shown there: each line at once, or folded. For one thread.

    A stuck reader may keep it waiting. Every line is shown, those of one worker in order. Folded, a line is shown
    together with those of all workers that have the same one next, as soon as all have it, or when it has waited for
    ``WINDOW_S``. Workers that have other lines before it show those first.
    """

    def __init__(
        self,
        name: str,
        prefixes: Mapping[int, str],
        ranks: Mapping[int, int] | None = None,
        *,
        fold: bool = False,
        timestamps: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``name``: ``stdout`` or ``stderr``, which is looked up for each use.

        ``prefixes``: what precedes a line that only one worker has, by local rank, for all workers that are shown.
        ``ranks``: the global ranks by local rank, if they differ. Only the text depends on them: plug-ins may set RANK
        to anything, even to the same value for two workers.
        """
        self._name, self._prefixes, self._ranks = name, prefixes, ranks or {}
        self._folds, self._timestamps, self._clock = fold, timestamps, clock
        self._open = OpenLine()
        self._folding: dict[int, deque[_Line]] = {each: deque() for each in sorted(prefixes)}
        self._waiting: deque[str] = deque()
        self._gone = False
        self.written = 0
        """The number of pieces written."""

    def has_room(self, otherwise: Callable[[], None]) -> bool:
        """Whether all is written and more can be without being dropped; if not, ``otherwise`` is called once it is so.

        Writes what waits, as far as there is room.
        """
        while self._name == "stdout" or stderr_has_room(otherwise):
            if not self._waiting:
                return True
            self._write(self._waiting.popleft())
            self.written += 1
        return False

    @property
    def is_empty(self) -> bool:
        """True if nothing waits to be written."""
        return not self._waiting

    def write(self, text: str) -> None:
        """Write in pieces; those for which there is no room wait. Once the reader is gone, nothing is written."""
        self._waiting.extend(_pieces(text))
        self.has_room(lambda: None)  # the writer looks again by itself

    def _write(self, text: str) -> None:
        stream = getattr(sys, self._name)
        if self._gone or stream is None:
            return
        try:
            try:
                stream.write(text)
            except UnicodeEncodeError:
                stream.write(text.encode(stream.encoding, "backslashreplace").decode(stream.encoding))
            stream.flush()
        except (OSError, ValueError):  # ValueError: the stream was closed
            self._gone = True

    def take(self, local_rank: int, lines: Sequence[str]) -> None:
        """Take lines of the worker with this local rank, as they are in its file; the last may lack its end so far."""
        stamp = _now() if self._timestamps else ""
        if self._folds:
            now = self._clock()
            self._folding[local_rank].extend([(text, now, stamp) for text in lines])
        elif lines:
            head, then = stamp + self._prefixes[local_rank], self._open.then
            self.write("".join([then((local_rank,), head, line) for line in lines]))

    def show(self, *, final: bool = False) -> float | None:
        """Show what is due (``final``: all there is); seconds until the next is due, None if nothing waits."""
        every, shown = list(self._folding.values()), list[str]()
        now, due = self._clock(), None
        at_once = final or sum(map(len, every)) > _MOST
        while heads := [lines[0] for lines in every if lines]:
            text, at, _ = min(heads, key=lambda line: line[1])
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
            self.write("".join(shown))
        return due

    def _next(self, text: str) -> str:
        """Take a line from all that have it next."""
        alike = [each for each, lines in self._folding.items() if lines and lines[0][0] == text]
        taken = [self._folding[each].popleft() for each in alike]
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


def _now() -> str:
    """The time in UTC, so that the lines of many nodes can be sorted: ``2026-01-31T12:00:00.000Z``."""
    seconds = time.time()
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(seconds % 1 * 1000):03d}Z "
