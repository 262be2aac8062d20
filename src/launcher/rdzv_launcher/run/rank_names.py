"""Ranks as text."""

from __future__ import annotations

from collections.abc import Sequence


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
