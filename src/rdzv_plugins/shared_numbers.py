"""Numbers in memory that an agent and its workers have both mapped: a reader just looks, and asks nobody.

The memory has no name in any file system: workers open it as ``/proc/AGENT/fd/N``, and nothing of it remains when the
agent has gone. Without memfd (not Linux, or forbidden) it is a temporary file.
"""

from __future__ import annotations

import functools
import mmap
import os


class SharedNumbers:
    """The agent's side: ``numbers[place] = ...``. Each number is read and written as a whole. Thread-safe."""

    def __init__(self, name: str, size: int) -> None:
        """``size`` is in bytes, 8 for each number; all are 0 at first."""
        self._named = False
        try:
            if not os.path.exists("/proc/self/fd"):
                raise FileNotFoundError
            self.fd = os.memfd_create(name)
            self.path = f"/proc/{os.getpid()}/fd/{self.fd}"
        except (AttributeError, OSError):
            import tempfile  # slow to import, and not needed elsewhere

            self.fd, self.path = tempfile.mkstemp(prefix=f"{name}-")
            self._named = True
        os.ftruncate(self.fd, size)
        self._numbers = memoryview(mmap.mmap(self.fd, size)).cast("q")

    def __getitem__(self, place: int) -> int:
        return int(self._numbers[place])

    def __setitem__(self, place: int, value: int) -> None:
        self._numbers[place] = value

    def close(self) -> None:
        """Release them; processes that have them mapped can still read them."""
        os.close(self.fd)
        if self._named:
            os.unlink(self.path)


@functools.cache
def open_numbers(path: str, size: int, *, write: bool = False) -> memoryview | None:
    """A worker's side: the numbers under ``path``, opened once; None if the agent has gone.

    Raises ``PermissionError``.
    """
    try:
        fd = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
        return memoryview(mmap.mmap(fd, size, prot=protection)).cast("q")
    finally:
        os.close(fd)
