"""What a benchmark says while it runs, on stderr, so that nobody waits for minutes without knowing for what."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    """One line that changes on a terminal; elsewhere a line for each case."""

    def __init__(self, bench: str, stream: TextIO | None = None) -> None:
        self._bench = bench
        self._stream = sys.stderr if stream is None else stream
        self._start = time.monotonic()
        self._case = ""
        self._width = 0
        self._changes = self._stream.isatty()

    def step(self, case: str, target: str, turn: int, turns: int) -> None:
        """Call this before each run; ``turn`` -1 is the warm-up."""
        if self._changes:
            which = f"run {turn + 1} of {turns}" if turn >= 0 else "warm-up"
            text = f"{self._bench}: {case}: {target}, {which} ({self._passed()})"
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        elif case != self._case:
            self._stream.write(f"{self._bench}: measuring {case} ... ({self._passed()})\n")
        self._case = case
        self._stream.flush()

    def say(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self.done()
        self._stream.write(f"{self._bench}: {text}\n")
        self._stream.flush()

    def done(self) -> None:
        """Remove the changing line: a table follows."""
        if self._changes and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._width = 0
        self._stream.flush()

    def _passed(self) -> str:
        seconds = int(time.monotonic() - self._start)
        return f"{seconds // 60}:{seconds % 60:02d}"
