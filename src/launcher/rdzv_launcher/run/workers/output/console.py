"""Our own standard streams, for lines of the workers' files."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator

from rdzv_launcher import queued_stderr

_PIECE = 32 << 10
"""How many characters are written at once: if a piece is not taken as a whole, all of it is dropped."""


class Console:
    """Standard output or error, looked up for each use. For one thread: a stuck reader may keep it waiting."""

    def __init__(self, name: str) -> None:
        """``name`` is ``stdout`` or ``stderr``."""
        self._name = name
        self._gone = False
        self._waiting: deque[str] = deque()
        self.written = 0
        """The number of pieces written."""

    def has_room(self, otherwise: Callable[[], None]) -> bool:
        """Whether all is written and more can be without being dropped; if not, ``otherwise`` is called once it is so.

        Writes what waits, as far as there is room.
        """
        while self._name == "stdout" or queued_stderr.has_room(otherwise):
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
        self.has_room(_nobody)

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


def _pieces(text: str) -> Iterator[str]:
    """Yield pieces, each ending with a line, unless the line is longer."""
    begin = 0
    while begin < len(text):
        end = begin + _PIECE
        if end < len(text):
            end = text.rfind("\n", begin, end) + 1 or end
        yield text[begin:end]
        begin = end


def _nobody() -> None:
    """Do nothing when there is room: the writer looks again by itself."""
