"""The time in front of a line, in UTC, so that the lines of many nodes can be sorted."""

from __future__ import annotations

import re
import time

_WIDTH = len("2026-01-31T12:00:00.000Z ")
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")


def stamp(seconds: float | None = None) -> str:
    """``2026-01-31T12:00:00.000Z`` and a space. ``seconds`` are of the clock; now, if not given."""
    seconds = time.time() if seconds is None else seconds
    whole = int(seconds)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int((seconds - whole) * 1000):03d}Z "


def split(line: str) -> tuple[str, str]:
    """The stamp of a line, empty if it has none, and the rest of the line."""
    return (line[:_WIDTH], line[_WIDTH:]) if _STAMP.match(line) else ("", line)
