"""How the workers' output is shown and kept, beyond what torchrun's flags say."""

from __future__ import annotations

import enum
import re

from msgspec import Struct

from rdzv_plugins.errors import UsageError

_RANKS = r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*"
_SIZE = r"(?i)(?P<number>[0-9]+)(?P<unit>[KMG])(?:i?B)?(?::(?P<files>[0-9]+))?"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_FILES = 5
_MOST_FILES = 1000
LEAST_SIZE = 64 << 10
"""The least size of a file that is rotated: with less, it would be all renaming."""


class Timestamps(enum.Enum):
    """Which lines are preceded by the time."""

    NONE = "none"
    SCREEN = "screen"
    FILES = "files"
    ALL = "all"


class LogSettings(Struct, frozen=True):
    """What is done with the workers' output. The same for every round. Usable from any thread."""

    prefix: bool = False
    """--log-prefix: everything shown of the workers is preceded by its origin."""
    fold: bool = False
    """Lines that several workers print alike are shown once, and of a flood no more than can be read."""
    ranks: tuple[range, ...] = ()
    """--ranks-filter: the global ranks whose output is shown; empty: all."""
    timestamps: Timestamps = Timestamps.NONE
    rotate_bytes: int = 0
    """--log-rotate: a log file that has reached this size makes room for a new one; 0: never."""
    rotate_files: int = 0
    """The most files that a stream has, including the one that is being written."""

    @property
    def stamps_screen(self) -> bool:
        return self.timestamps in (Timestamps.SCREEN, Timestamps.ALL)

    @property
    def stamps_files(self) -> bool:
        return self.timestamps in (Timestamps.FILES, Timestamps.ALL)

    @property
    def copies(self) -> bool:
        """Whether the agent writes the files. Otherwise the workers do, which costs nothing."""
        return self.stamps_files or self.rotate_bytes > 0

    def shows(self, global_rank: int) -> bool:
        """False if --ranks-filter leaves the worker's output out."""
        return not self.ranks or any(global_rank in each for each in self.ranks)


def read_log_settings(*, prefix: bool, fold: bool, ranks: str, timestamps: str, rotate: str) -> LogSettings:
    """The settings, from what flags or --rdzv-conf say. Raises ``UsageError`` that names the flag."""
    size, files = _rotation(rotate)
    return LogSettings(prefix, prefix and fold, _ranks(ranks), Timestamps(timestamps), size, files)


def _ranks(text: str) -> tuple[range, ...]:
    if not text:
        return ()
    pairs = [part.partition("-") for part in text.split(",")] if re.fullmatch(_RANKS, text) else []
    found = tuple(range(int(first), int(last or first) + 1) for first, _, last in pairs)
    if not found or not all(found):
        raise UsageError(
            f"--ranks-filter={text} is not a list of ranks",
            remedy="For example --ranks-filter=0 or --ranks-filter=0,8-15",
        )
    return found


def _rotation(text: str) -> tuple[int, int]:
    if not text:
        return 0, 0
    found = re.fullmatch(_SIZE, text)
    size = int(found["number"]) * _UNITS[found["unit"].upper()] if found else 0
    files = int(found["files"] or _FILES) if found else 0
    if size < LEAST_SIZE or not 2 <= files <= _MOST_FILES:
        raise UsageError(
            f"--log-rotate={text} does not say how large a log file may get",
            remedy=f"SIZE or SIZE:FILES, for example 100MiB:5: from {LEAST_SIZE >> 10}KiB, and from 2 to {_MOST_FILES} "
            "files of each stream.",
        )
    return size, files
