"""Numbers on the command line."""

from __future__ import annotations

from rdzv_plugins.errors import UsageError


def positive(flag: str, value: str | int) -> int:
    """A whole number, at least 1. Raises ``UsageError``."""
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise UsageError(f"{flag}={value}: a whole number, at least 1, is needed")
    return number
