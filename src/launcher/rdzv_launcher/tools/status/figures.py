"""Figures for people: counts, durations, sizes, shares."""

from __future__ import annotations

from collections.abc import Mapping


def counts(named: Mapping[str, int]) -> str:
    """The counts that are not 0, each with its name, or ``none``."""
    return ", ".join(f"{name} {count}" for name, count in named.items() if count) or "none"


def many(count: int, one: str, more: str = "") -> str:
    """A number with its noun: ``1 worker``, ``2 workers``."""
    return f"{count} {one if count == 1 else more or one + 's'}"


def duration(seconds: float) -> str:
    """A duration as text, in seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def size(count: float) -> str:
    """A number of bytes as text, in the unit that fits."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def saved(asked: int, sent: int) -> str:
    """How much of ``asked`` did not have to be sent, as text."""
    return f"{(asked - sent) / asked:.0%} saved" if 0 <= sent < asked else "none saved"
