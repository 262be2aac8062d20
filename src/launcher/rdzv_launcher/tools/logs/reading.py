"""The log files of a worker, rotated or not: all of them, or their last lines."""

from __future__ import annotations

import os
import shutil
from typing import BinaryIO

from rdzv_launcher.run.workers.output.rotated import all_of

_BLOCK = 64 << 10
_MOST_BYTES = 4 << 20
"""Of which the last lines are taken, however long they are."""


def size_of(path: str) -> int:
    """How many bytes there are, in all files of the stream."""
    return sum(os.path.getsize(each) for each in all_of(path)) if path else 0


def copy_all(path: str, target: BinaryIO) -> None:
    """All that there is, the oldest first, byte for byte. Raises ``OSError``."""
    for each in all_of(path):
        with open(each, "rb") as file:
            shutil.copyfileobj(file, target)


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
