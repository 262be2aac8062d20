"""Run ids and hosts as parts of file names, and ranks as text.

Whoever chooses a run id or a host does not get to choose the directory, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_LONGEST = 60
_LONGEST_BYTES = 200
"""A name may have at most 255 bytes, and ours contain more than this part."""


def word(text: str) -> str:
    """``text`` as letters, digits and ``_.-``, at most 60 characters; does not begin with a dot, and is not empty."""
    return re.sub(r"[^\w.-]", "_", text, flags=re.ASCII)[:_LONGEST].lstrip(".") or "_"


def component(text: str) -> str:
    """``text`` unchanged, except what would lead elsewhere or is invisible. At most 200 bytes, for part of a name."""
    safe = "".join("_" if each == "/" or not each.isprintable() else each for each in text)
    return safe.encode()[:_LONGEST_BYTES].decode(errors="ignore")


def compressed(ranks: Sequence[int]) -> str:
    """A list of ranks, such as ``0-2, 5``."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def named(ranks: Sequence[int]) -> str:
    """Ranks with a noun: ``rank 3``, ``ranks 0-2``."""
    return f"rank{'' if len(set(ranks)) == 1 else 's'} {compressed(ranks)}"
