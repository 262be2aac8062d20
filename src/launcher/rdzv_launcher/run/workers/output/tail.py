"""A worker's log file that grows, and is shown meanwhile."""

from __future__ import annotations

import io
import os
from collections.abc import Callable

from rdzv_launcher.run.workers.output.console import Console
from rdzv_launcher.run.workers.output.filtered import FilteredFile
from rdzv_launcher.run.workers.output.lines import Lines

_CHUNK = 64 * 1024


class Tail:
    """Reads what is appended to one file. Not thread-safe."""

    def __init__(self, path: str, prefix: str, console: Console, filtered: FilteredFile | None) -> None:
        """``prefix`` stands before each line, also in ``filtered``. Raises ``OSError`` if there can be no such file."""
        # whoever starts the worker may make the file only then
        self._file = io.FileIO(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
        self._prefix = prefix
        self._console = console
        self._filtered = filtered
        self._lines = Lines()
        self._end: int | None = None

    def pump(self, on_room: Callable[[], None]) -> int:
        """Pass on some of what is new; returns how many bytes: none without room (``on_room``: there is again)."""
        if not self._console.has_room(on_room):
            return 0
        most = _CHUNK if self._end is None else min(_CHUNK, self._end - self._file.tell())
        data = self._file.read(most) if most > 0 else b""
        if data:
            self._show(self._lines.feed(data))
        return len(data or b"")

    def stop_here(self) -> None:
        """The worker has ended; what it has started may write on, for which nobody waits. Again: as the first time."""
        if self._end is None:
            self._end = os.fstat(self._file.fileno()).st_size

    @property
    def is_done(self) -> bool:
        """All was passed on that was there when it was told to stop."""
        return self._end is not None and self._file.tell() >= self._end

    def close(self) -> None:
        """Pass on a last line without an end, and let go of the file."""
        self._show(self._lines.feed(b"", final=True))
        self._file.close()

    def _show(self, lines: list[str]) -> None:
        prefixed = [self._prefix + line for line in lines]
        if self._filtered is not None:
            for line in prefixed:
                self._filtered.take(line)
        if prefixed:
            self._console.write("".join(prefixed))
