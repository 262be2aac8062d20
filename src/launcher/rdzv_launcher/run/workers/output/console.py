"""Our own standard streams, for lines of the workers' files."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator

from rdzv_launcher import queued_stderr

_PIECE = 32 << 10
"""So many characters are written at once: of what is not taken as a whole all is dropped."""


class Console:
    """Standard output or error, looked up for each use. For one thread: a stuck reader may keep it waiting."""

    def __init__(self, name: str) -> None:
        """``name`` is ``stdout`` or ``stderr``."""
        self._name = name
        self._gone = False
        self._waiting: deque[str] = deque()
        self.written = 0
        """So many pieces were."""

    def has_room(self, otherwise: Callable[[], None]) -> bool:
        """Whether all is written, and more can be without being dropped; ``otherwise`` is called when that is so again.

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
        """Nothing waits to be written."""
        return not self._waiting

    def write(self, text: str) -> None:
        """In pieces; those for which there is no room wait. Once whoever read it is gone nothing is written."""
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
        except (OSError, ValueError):  # the last for a stream that was closed
            self._gone = True


def _pieces(text: str) -> Iterator[str]:
    """Each ends with a line, unless that is longer."""
    begin = 0
    while begin < len(text):
        end = begin + _PIECE
        if end < len(text):
            end = text.rfind("\n", begin, end) + 1 or end
        yield text[begin:end]
        begin = end


def _nobody() -> None:
    """Waits for room: whoever writes looks again by itself."""
