"""Names keys in messages, whichever service they belong to."""

from __future__ import annotations

from collections.abc import Iterable

_NAMED = 3


def named(keys: Iterable[str]) -> str:
    """Some of the keys, and how many more there are."""
    listed = list(keys)
    more = len(listed) - _NAMED
    return ", ".join(map(repr, listed[:_NAMED])) + (f" and {more} more" if more > 0 else "")
