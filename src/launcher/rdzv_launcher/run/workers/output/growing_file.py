"""The files of a stream that logrotate keeps, the newest first: ``stdout.log`` (being written), ``stdout.log.1``, ...

Workers append, and nothing here renames or truncates: logrotate does, with ``copytruncate``.
"""

from __future__ import annotations

import io
import os

_BLOCK = 64 << 10
_MOST_BYTES = 4 << 20
"""The most bytes that are searched for the last lines, however long these are."""


def older(path: str, number: int) -> str:
    """The path of an older file of the stream; 0 is the one being written."""
    return f"{path}.{number}" if number else path


def all_of(path: str) -> list[str]:
    """The existing files of the stream, oldest first."""
    number, found = 1, [path] if os.path.isfile(path) else []
    while os.path.isfile(older(path, number)):
        found.insert(0, older(path, number))
        number += 1
    return found


def last_lines(path: str, count: int) -> list[str]:
    """The last lines of a stream, oldest first, without their ends. Raises ``OSError``."""
    data = b""
    for each in reversed(all_of(path)):
        with open(each, "rb") as file:
            left = os.fstat(file.fileno()).st_size
            while left > 0 and data.count(b"\n") <= count and len(data) < _MOST_BYTES:
                step = min(_BLOCK, left)
                left -= step
                file.seek(left)
                data = file.read(step) + data
    lines = data.decode(errors="replace").split("\n")
    return (lines[:-1] if not lines[-1] else lines)[-count:] if count else []


class GrowingFile:
    """A file that is read while it grows: from its beginning, once. Not thread-safe.

    A file that is renamed is read on, as its writer has it open, too. One that is copied and truncated
    (``copytruncate``) is read to the end of its copy, and then from its new beginning.
    """

    def __init__(self, path: str) -> None:
        """Raises ``OSError``."""
        self._path = path
        self._missed = False
        # whoever starts the worker may create the file only later
        self._file = io.FileIO(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
        self._copy: io.FileIO | None = None
        """While there is something to read of what was in the file before it was truncated."""

    def read(self, most: int) -> bytes:
        """Some of what is new; empty if everything so far has been read."""
        self._follow()
        return (self._copy or self._file).read(most) or b""

    def missed(self) -> bool:
        """Whether lines may be missing before what was read last: the file was truncated. True once each time."""
        missed, self._missed = self._missed, False
        return missed

    def behind(self) -> int:
        """How many bytes are left to be read."""
        self._follow()
        return _rest(self._file) + (_rest(self._copy) if self._copy is not None else 0)

    def skip_to_last(self, most: int) -> int:
        """Leave out all but the last ``most`` bytes, or fewer; returns how many bytes are left out."""
        before = self.behind()
        self._end_copy()
        self._file.seek(max(self._file.tell(), os.fstat(self._file.fileno()).st_size - most))
        return max(0, before - _rest(self._file))

    def close(self) -> None:
        self._end_copy()
        self._file.close()

    def _follow(self) -> None:
        """Turn to the copy of a file that was truncated, and back once that has been read."""
        if self._copy is not None and _rest(self._copy) == 0:
            self._end_copy()
        read = self._file.tell()
        if os.fstat(self._file.fileno()).st_size >= read:
            return  # also if as much was written since: within a tenth of a second, so it was a small file
        self._end_copy()
        self._file.seek(0)
        try:
            copy = io.FileIO(os.open(older(self._path, 1), os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            self._missed = True
            return
        if os.fstat(copy.fileno()).st_size < read:  # of something else
            copy.close()
            self._missed = True
            return
        copy.seek(read)
        self._copy = copy

    def _end_copy(self) -> None:
        if self._copy is not None:
            self._copy.close()
            self._copy = None


def _rest(file: io.FileIO) -> int:
    return max(0, os.fstat(file.fileno()).st_size - file.tell())
