"""What is shown of the workers' files while they grow: ``--tee``, from one thread for all of them, and its prefixes.

Lines are shown unchanged, or folded: those that several workers print alike within a moment are shown once, as
``[ranks 0-7] epoch 3``.
"""

from __future__ import annotations

import codecs
import io
import logging
import socket
import string
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from rdzv_launcher.console import stderr_has_room
from rdzv_launcher.run.names import named
from rdzv_launcher.run.workers.output.growing_file import GrowingFile
from rdzv_launcher.run.workers.output.log_files import Destinations
from rdzv_launcher.run.workers.spec import WorkersSpec
from rdzv_plugins.runtime import OwnThread

logger = logging.getLogger(__name__)


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


_BURST = 256 << 10
_RATE = 16 << 10
AT_ONCE = 16 << 10
"""How much of the newest output is shown, each time that this much may be shown again."""


class Allowance:
    """Bytes of one worker's stream: ``_BURST`` at first, and then ``_RATE`` per second. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left, self._at = float(_BURST), clock()

    def left(self) -> int:
        """How many bytes may be shown now; negative after more were shown."""
        now = self._clock()
        self._left = min(_BURST, self._left + (now - self._at) * _RATE)
        self._at = now
        return int(self._left)

    def take(self, count: int) -> None:
        self._left -= count


class FilteredFile:
    """Shared by all workers of a round. For one thread. A full disk ends the file, and nothing else."""

    def __init__(self, path: str, needles: tuple[str, ...]) -> None:
        self._path = path
        self._needles = needles
        self._file: io.FileIO | None = None
        try:
            self._file = io.FileIO(path, "wb")
        except OSError as error:
            self._give_up(error)

    def take(self, line: str) -> None:
        """Write the line, if it contains one of the words."""
        if self._file is not None and any(needle in line for needle in self._needles):
            try:
                self._file.write(line.encode(errors="replace"))
            except OSError as error:
                self.close()
                self._give_up(error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _give_up(self, error: OSError) -> None:
        logger.warning("no more lines are written to %s: %s", self._path, error.strerror or error)


_CHUNK = 64 * 1024
_LITTLE = 4 << 10
"""How far a stream may exceed its allowance: less is not worth a line that says what is missing."""
_PROMPT_S = 0.3
"""How long the end of a line is waited for. Then what there is of it is shown: it may be a question."""


class Tail:
    """Reads what is appended to one file. Not thread-safe."""

    def __init__(
        self,
        path: str,
        local_rank: int,
        view: View,
        *,
        filtered: FilteredFile | None = None,
        prefix: str = "",
        allowance: Allowance | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``local_rank``: as ``view`` knows it. ``prefix`` precedes each line in ``filtered``.

        ``allowance``: output beyond it is left out; None: everything is shown. Raises ``OSError`` if there can be no
        such file.
        """
        self._file = GrowingFile(path)
        self._path, self._local_rank, self._view = path, local_rank, view
        self._filtered, self._prefix = filtered, prefix
        self._allowance = allowance if filtered is None else None  # everything is collected there
        self._lines = Lines()
        self._clock = clock
        self._read_at = clock()
        self._ahead = 0
        """How much of the line whose end has not come yet is shown already, in characters."""
        self._left: int | None = None
        """Once it is told to stop: how much is still to be passed on."""
        self.complete = True
        """Whether nothing was left out."""

    def pump(self, on_room: Callable[[], None]) -> int:
        """Pass on some of what is new; returns how many bytes: 0 without room (``on_room``: there is again)."""
        if not self._view.has_room(on_room):
            return 0
        if self._allowance is not None and not self._keep_up(self._allowance):
            return 0
        data = self._file.read(_CHUNK if self._left is None else min(_CHUNK, self._left))
        if self._left is not None:
            self._left = self._left - len(data) if data else 0
        if self._file.missed():
            self._take(self._lines.feed(b"", final=True))
            self._say(f"lines may be missing here: {self._path} was truncated before they were shown")
        if data:
            self._read_at = self._clock()
            self._take(self._lines.feed(data))
        elif self._clock() - self._read_at > _PROMPT_S and len(begun := self._lines.unfinished) > self._ahead:
            self._view.take(self._local_rank, [begun[self._ahead :]])
            self._ahead = len(begun)
        return len(data)

    def _keep_up(self, allowance: Allowance) -> bool:
        """Leave out what is too much; False if nothing may be shown now."""
        behind, left = self._file.behind(), allowance.left()
        if behind > left + _LITTLE:
            if left < AT_ONCE and self._left is None:
                return False
            self._take(self._lines.feed(b"", final=True))
            left_out = self._file.skip_to_last(AT_ONCE)
            if left_out:
                size = f"{left_out / 2**20:.1f} MiB" if left_out >= 1 << 20 else f"{left_out / 2**10:.1f} KiB"
                self._say(f"{size} left out here: see {self._path}")
            behind -= left_out
            if self._left is not None:
                self._left = max(0, self._left - left_out)
        allowance.take(min(behind, _CHUNK))
        return True

    def stop_here(self) -> None:
        """The worker has ended. What it started may write on, but nobody waits for that. Repeating changes nothing."""
        if self._left is None:
            self._left = self._file.behind()

    @property
    def floods(self) -> bool:
        """Whether it has used up its allowance: no more of it may be shown for a while."""
        return self._allowance is not None and self._allowance.left() < AT_ONCE

    @property
    def is_done(self) -> bool:
        """Whether everything that existed when it was told to stop has been passed on."""
        return self._left == 0

    def close(self) -> None:
        """Pass on a last line without an end, and release the file."""
        self._take(self._lines.feed(b"", final=True))
        self._file.close()

    def _say(self, what: str) -> None:
        """Show a line of ours among the worker's: something of it is missing there."""
        self.complete = False
        self._view.take(self._local_rank, [f"({what})\n"])

    def _take(self, lines: list[str]) -> None:
        if self._filtered is not None:
            for line in lines:
                self._filtered.take(self._prefix + line)
        if lines and self._ahead:
            lines, self._ahead = [lines[0][self._ahead :], *lines[1:]], 0
        self._view.take(self._local_rank, lines)


_INTERVAL_S = 0.1
"""How late a line may be shown. Files cannot be waited for."""
_FLOOD_S = 0.4
"""The same while more arrives than is shown: each look costs, and nobody reads that fast."""


class Tee:
    """The files of one round. Used by the agent's thread.

    Workers wait for nobody: what our streams do not take stays in the files until they do.
    """

    def __init__(self, tails: Sequence[Tail], filtered: Sequence[FilteredFile], views: Sequence[View]) -> None:
        self._tails = list(tails)
        self._filtered = list(filtered)
        self._views = list(views)
        self._woken = threading.Event()
        self._stopping = self._given_up = False
        self._shown = 0
        self.complete = True
        """Whether nothing of the files was left out so far."""
        self._thread = OwnThread(target=self._run, name="rdzv-tee")
        if tails:
            self._thread.start()
        else:
            self._close_filtered()

    def stop(self, stuck: float, most: float) -> bool:
        """The workers have ended: show the rest. False if our streams did not take all of it.

        We give up on the streams when they take nothing for ``stuck`` seconds, and in any case after ``most`` seconds.
        """
        self._stopping = True
        self._woken.set()
        deadline, shown = time.monotonic() + most, -1
        while self._thread.is_alive() and shown != self._shown and time.monotonic() < deadline:
            shown = self._shown
            self._thread.join(stuck)
        self._given_up = True
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (self._tails or not self._all_written()) and not self._given_up:
                self._turn()
        except Exception:  # nothing in the job depends on this thread
            self.complete = False
            logger.exception("error in --tee: nothing more is shown, but the files are complete")
        finally:
            self._close_filtered()

    def _all_written(self) -> bool:
        return all(each.is_empty for each in self._views)

    def _close_filtered(self) -> None:
        for each in self._filtered:
            each.close()

    def _turn(self) -> None:
        """Give each file its turn; wait if none had anything."""
        self._woken.clear()
        stopping = self._stopping
        if stopping:
            for tail in self._tails:
                tail.stop_here()
        written = sum(each.written for each in self._views)
        moved = sum([tail.pump(self._woken.set) for tail in self._tails])
        if stopping:
            for tail in [each for each in self._tails if each.is_done]:
                self._tails.remove(tail)
                self.complete = self.complete and tail.complete
                tail.close()
        due = [each.show(final=not self._tails) for each in self._views]
        for each in self._views:
            each.has_room(self._woken.set)
        moved += sum(each.written for each in self._views) - written
        self._shown += moved
        if not moved and (self._tails or not self._all_written()):
            interval = _FLOOD_S if any(tail.floods for tail in self._tails) else _INTERVAL_S
            self._woken.wait(min([interval, *(each for each in due if each is not None)]))


def show(
    found: Destinations, spec: WorkersSpec, variables: Mapping[int, Mapping[str, str]], ranks: Mapping[int, int]
) -> Tee:
    """Start showing the files of a round that are to be shown.

    ``variables`` are those of the workers and ``ranks`` their global ranks, both by local rank.
    """
    host = socket.gethostname()
    tails, filtered, views = list[Tail](), list[FilteredFile](), list[View]()
    for name, stream, needles in (
        ("stdout", found.stdout, spec.stdout_filters),
        ("stderr", found.stderr, spec.stderr_filters),
    ):
        paths = stream.teed
        collected = FilteredFile(stream.filtered, needles) if needles and stream.filtered else None
        if collected is not None:
            filtered.append(collected)
        prefixes = {each: _prefix(spec, host, each, variables[each]) if each in variables else "" for each in paths}
        fold = spec.fold and len(paths) > 1
        views.append(view := View(name, prefixes, ranks, fold=fold, timestamps=spec.timestamps))
        for each, file in paths.items():
            allowance = Allowance() if spec.fold else None
            try:
                tails.append(Tail(file, each, view, filtered=collected, prefix=prefixes[each], allowance=allowance))
            except OSError as error:
                logger.warning("--tee cannot show %s: %s", file, error.strerror or error)
    return Tee(tails, filtered, views)


def _prefix(spec: WorkersSpec, host: str, local_rank: int, variables: Mapping[str, str]) -> str:
    """The prefix of each line. ``local_rank`` is not always the LOCAL_RANK of the worker's variables."""
    template = spec.prefix_template or ("${host}:${rank} " if spec.log_prefix else "[${role_name}${local_rank}]:")
    return string.Template(template).safe_substitute(
        role_name=spec.role, rank=variables.get("RANK", ""), local_rank=local_rank, host=host, hostname=host
    )
