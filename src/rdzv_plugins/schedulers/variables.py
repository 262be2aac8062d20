"""Reads variables that a scheduler has set. One that is not as documented raises ``UsageError``, which names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from rdzv_plugins.errors import UsageError
from rdzv_plugins.plain_text import printable
from rdzv_plugins.schedulers.facts import Fact

REMEDY = (
    "Give the flags instead: --nnodes, --node-rank and --rdzv-endpoint; or switch the plug-in off: --rdzv-no-plugin "
)
_MOST_DIGITS = 18
"""All numbers of schedulers have 64 bits at most."""


class Variables:
    """The environment of this process, as one plug-in reads it. An empty variable counts as not set."""

    def __init__(self, environ: Mapping[str, str], plugin: str) -> None:
        self._environ = environ
        self._remedy = f"{REMEDY}{plugin}."

    def text(self, name: str) -> Fact[str] | None:
        """A variable as it is; None if it is not set."""
        value = self._environ.get(name, "")
        return Fact(value, name) if value else None

    def number(self, name: str, minimum: int = 0) -> Fact[int] | None:
        """A whole number; None if the variable is not set."""
        value = self._environ.get(name, "")
        if not value:
            return None
        if not (value.isascii() and value.isdecimal()) or len(value) > _MOST_DIGITS or int(value) < minimum:
            raise self.wrong(name, f"is not a number of {minimum} or more")
        return Fact(int(value), name)

    def needed_text(self, name: str) -> Fact[str]:
        """Like ``text``, for a variable that is always set together with those that were found."""
        return self.text(name) or self._missing(name)

    def needed_number(self, name: str, minimum: int = 0) -> Fact[int]:
        """Like ``number``, for a variable that is always set together with those that were found."""
        return self.number(name, minimum) or self._missing(name)

    def wrong(self, name: str, why: str) -> UsageError:
        """The error for a variable that cannot be used."""
        return UsageError(f"{name}={printable(self._environ.get(name, ''), 200)} {why}", remedy=self._remedy)

    def refused(self, message: str, remedy: str = "") -> UsageError:
        """The error for variables that cannot be used together."""
        return UsageError(message, remedy=remedy or self._remedy)

    def below(self, rank: Fact[int], count: Fact[int]) -> Fact[int]:
        """``rank``, if it is less than ``count``."""
        if rank.value >= count.value:
            raise self.refused(f"{rank} contradicts {count}: they count from 0 to {count.value - 1}")
        return rank

    def _missing(self, name: str) -> NoReturn:
        raise self.refused(f"{name} is not set, though variables that are set with it are there")
