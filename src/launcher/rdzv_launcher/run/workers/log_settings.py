"""How the workers' output is shown and kept, beyond what torchrun's flags say."""

from __future__ import annotations

import re

from msgspec import Struct

from rdzv_plugins.errors import UsageError

_RANKS = r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*"


class LogSettings(Struct, frozen=True):
    """What is done with the workers' output. The same for every round. Usable from any thread."""

    prefix: bool = False
    """--log-prefix: everything shown of the workers is preceded by its origin."""
    fold: bool = False
    """Lines that several workers print alike are shown once, and of a flood no more than can be read."""
    ranks: tuple[range, ...] = ()
    """--ranks-filter: the global ranks whose output is shown; empty: all."""
    timestamps: bool = False
    """--log-timestamps: everything shown of the workers is preceded by the time."""

    def shows(self, global_rank: int) -> bool:
        """False if --ranks-filter leaves the worker's output out."""
        return not self.ranks or any(global_rank in each for each in self.ranks)


def read_log_settings(*, prefix: bool, fold: bool, ranks: str, timestamps: str) -> LogSettings:
    """The settings, from what flags or --rdzv-conf say. Raises ``UsageError`` that names the flag."""
    return LogSettings(prefix, prefix and fold, _ranks(ranks), timestamps == "screen")


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
