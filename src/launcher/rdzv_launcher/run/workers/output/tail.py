"""A worker's log file that is shown while it grows."""

from __future__ import annotations

import time
from collections.abc import Callable

from rdzv_launcher.run.workers.output.allowance import AT_ONCE, Allowance
from rdzv_launcher.run.workers.output.filtered import FilteredFile
from rdzv_launcher.run.workers.output.growing_file import GrowingFile
from rdzv_launcher.run.workers.output.lines import Lines
from rdzv_launcher.run.workers.output.view import View

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
        if not self._view.console.has_room(on_room):
            return 0
        if self._allowance is not None and not self._keep_up(self._allowance):
            return 0
        data = self._file.read(_CHUNK if self._left is None else min(_CHUNK, self._left))
        if self._left is not None:
            self._left = self._left - len(data) if data else 0
        if self._file.missed():
            self._take(self._lines.feed(b"", final=True))
            self._say(f"lines may be left out here: {self._path} was truncated before they were shown")
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
                self._say(f"{size} are left out here: {self._path} has them")
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
