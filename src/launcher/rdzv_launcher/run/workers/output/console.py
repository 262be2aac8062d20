"""Our own standard streams, for lines of the workers' files."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rdzv_launcher import queued_stderr


class Console:
    """Standard output or error, looked up for each use. For one thread: a stuck reader may keep it waiting."""

    def __init__(self, name: str) -> None:
        """``name`` is ``stdout`` or ``stderr``."""
        self._name = name
        self._gone = False

    def has_room(self, otherwise: Callable[[], None]) -> bool:
        """Whether lines can be written now without being dropped; ``otherwise`` is called when that is so again."""
        return self._name == "stdout" or queued_stderr.has_room(otherwise)

    def write(self, text: str) -> None:
        """In one piece. Whoever has read it may be gone: then nothing is written any more."""
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
