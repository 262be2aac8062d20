"""A log file as its reader sees it: it grows, and it may be rotated meanwhile."""

from __future__ import annotations

import io
import os

from rdzv_launcher.run.workers.output.rotated import older


class GrowingFile:
    """A file that is read while it grows: from its beginning, once. Not thread-safe."""

    def __init__(self, path: str, files: int = 0) -> None:
        """``files``: how many there may be if it is rotated; 0: it is not rotated. Raises ``OSError``."""
        self._path, self._files = path, files
        self._missed = False
        # whoever starts the worker may create the file only later
        self._file = io.FileIO(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))

    def read(self, most: int) -> bytes:
        """Some of what is new; empty if everything so far has been read."""
        data = self._file.read(most)
        if not data and self._go_on():
            data = self._file.read(most)
        return data or b""

    def missed(self) -> bool:
        """Whether lines may be missing before what was read last: files were rotated away. True once each time."""
        missed, self._missed = self._missed, False
        return missed

    def behind(self) -> int:
        """How many bytes are left to be read."""
        return self._rest() + sum(_look(older(self._path, number))[1] for number in range(self._age()))

    def skip_to_last(self, most: int) -> int:
        """Leave out all but the last ``most`` bytes, or fewer; returns how many bytes are left out."""
        before = self.behind()
        if self._age():
            self._open(self._path)
        self._file.seek(max(self._file.tell(), os.fstat(self._file.fileno()).st_size - most))
        return max(0, before - self._rest())

    def close(self) -> None:
        self._file.close()

    def _rest(self) -> int:
        return max(0, os.fstat(self._file.fileno()).st_size - self._file.tell())

    def _age(self) -> int:
        """How many files have come after this one; 0 also while they are being renamed."""
        if not self._files:
            return 0
        mine = os.fstat(self._file.fileno()).st_ino
        for number in range(self._files):
            inode, _ = _look(older(self._path, number))
            if inode == mine:
                return number
            if not inode and number:
                return 0
        return self._files  # it is gone: it was older than all that exist

    def _go_on(self) -> bool:
        """Take the next file, if there is one now."""
        age = self._age()
        if not age or self._rest():  # it got more before it was followed by another
            return False
        mine = os.fstat(self._file.fileno()).st_ino
        file = self._opened(older(self._path, age - 1))
        if file is None:
            return False
        # the oldest is renamed first: if this one still is where it was, the opened file was the one after it
        if age < self._files and _look(older(self._path, age))[0] != mine:
            file.close()
            return False
        self._file.close()
        self._file = file
        self._missed = self._missed or age == self._files
        return True

    def _open(self, path: str) -> None:
        if (file := self._opened(path)) is not None:
            self._file.close()
            self._file = file

    @staticmethod
    def _opened(path: str) -> io.FileIO | None:
        try:
            return io.FileIO(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:  # it was renamed just now: try again with the next look
            return None


def _look(path: str) -> tuple[int, int]:
    """Its number in the file system, and its size; zeros if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_ino, found.st_size
