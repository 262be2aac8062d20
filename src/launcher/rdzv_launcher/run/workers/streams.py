"""--redirects and --tee: which of a worker's standard streams they apply to, by local rank."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

from msgspec import Struct, field

from rdzv_plugins.errors import UsageError

_BY_RANK = r"[0-9]+:[0-3](,[0-9]+:[0-3])*"


class Std(enum.IntFlag):
    """Standard streams, numbered as in torchrun's flags."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


class Streams(Struct, frozen=True):
    """The streams of all workers, or of some: a local rank that is not named has none."""

    all_ranks: Std = Std.NONE
    by_rank: Mapping[int, Std] | None = field(default=None)

    def of(self, local_rank: int) -> Std:
        """The streams of one worker."""
        return self.all_ranks if self.by_rank is None else self.by_rank.get(local_rank, Std.NONE)


def parse_streams(flag: str, text: str) -> Streams:
    """Parse ``3`` (all), or ``0:1,1:2`` (rank 0 its stdout, rank 1 its stderr). Raises ``UsageError`` naming ``flag``.

    torch only accepts local ranks of one digit.
    """
    if text in {"0", "1", "2", "3"}:
        return Streams(Std(int(text)))
    if re.fullmatch(_BY_RANK, text):
        pairs = (part.split(":") for part in text.split(","))
        return Streams(by_rank={int(rank): Std(int(streams)) for rank, streams in pairs})
    raise UsageError(
        f"{flag}={text} is neither a number from 0 to 3 nor RANK:NUMBER,...",
        remedy=f"1 is stdout, 2 is stderr, 3 is both: {flag}=3 for all workers, {flag}=0:1,1:2 for some local ranks.",
    )
