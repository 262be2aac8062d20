"""The files of a stream that logrotate keeps, the newest first: ``stdout.log`` (being written), ``stdout.log.1``, ...

Workers append, and nothing here renames or truncates: logrotate does, with ``copytruncate``.
"""

from __future__ import annotations

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
