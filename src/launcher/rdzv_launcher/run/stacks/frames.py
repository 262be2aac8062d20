"""A place in the code: frames, threads, and their form in JSON. The innermost frame comes first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_LONGEST_TEXT = 300
_MOST_FRAMES = 160
_OUTERMOST = 40


@dataclass(frozen=True)
class Frame:
    """One call on a thread's stack."""

    function: str
    file: str
    line: int
    """The line number; 0 if it is not known, as for native code."""

    @property
    def short(self) -> str:
        """The file's name and the line, for messages."""
        name = os.path.basename(self.file) or "?"
        return f"{name}:{self.line}" if self.line else name


@dataclass(frozen=True)
class Thread:
    """One thread of a process."""

    name: str
    is_main: bool
    frames: tuple[Frame, ...]
    is_active: bool | None = None
    """Whether it was on a processor when it was read; None if that is not known."""


def limited(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """No more frames than fit into a message: of an endless recursion, the innermost and the outermost."""
    if len(frames) <= _MOST_FRAMES:
        return tuple(frames)
    left = len(frames) - _MOST_FRAMES
    gap = Frame(f"... {left} more calls ...", "", 0)
    return (*frames[: _MOST_FRAMES - _OUTERMOST], gap, *frames[-_OUTERMOST:])


def frame_of(data: Any) -> Frame:
    """A frame from JSON that others have sent. Raises ``ValueError``."""
    if not isinstance(data, list) or len(data) != 3:
        raise ValueError("not a frame")
    function, file, line = data
    if not (isinstance(function, str) and isinstance(file, str) and type(line) is int):
        raise ValueError("not a frame")
    return Frame(function[:_LONGEST_TEXT], file[:_LONGEST_TEXT], line)


def frame_data(frame: Frame) -> list[Any]:
    """A frame in its JSON form."""
    return [frame.function[:_LONGEST_TEXT], frame.file[:_LONGEST_TEXT], frame.line]
