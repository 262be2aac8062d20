"""The kinds of options. Each records in the namespace's ``given`` that a flag has set it.

So it is known afterwards what was asked for, and what is a default. An option with a ``from_text`` may also be set by
its environment variable: the method turns the text into what the flag would have produced.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from rdzv_plugins.errors import UsageError


class _Noting(argparse.Action):
    """An option that records that it was given."""

    def note(self, namespace: argparse.Namespace, value: Any) -> None:
        """Set the option's destination, by a flag."""
        setattr(namespace, self.dest, value)
        namespace.given = frozenset({self.dest}).union(getattr(namespace, "given", ()))


class FlagOnly(_Noting):
    """A value that only a flag can give: torchrun has no variable for it."""

    def __call__(self, _: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *__: object) -> None:
        self.note(namespace, values)


class Value(FlagOnly):
    """A value given by a flag or its variable."""

    def from_text(self, variable: str, text: str) -> Any:
        """The value of ``variable``, read like the flag's. Raises ``UsageError``: argparse would blame the flag."""
        try:
            value = self.type(text) if callable(self.type) else text
        except (TypeError, ValueError, argparse.ArgumentTypeError):
            raise UsageError(f"{variable}={text}: not a valid {getattr(self.type, '__name__', 'value')}") from None
        if self.choices is not None and value not in self.choices:
            raise UsageError(f"{variable}={text} is none of {', '.join(map(str, self.choices))}")
        return value


class ValueOrNone(Value):
    """A flag whose value is optional, and can only be given after ``=``: what follows the flag may be the script."""

    const: str

    def __init__(self, option_strings: Sequence[str], dest: str, *, const: str, **others: Any) -> None:
        super().__init__(option_strings, dest, type=str, **others)
        self.const = const

    def from_text(self, variable: str, text: str) -> Any:
        """A number other than 0 is the same as the flag alone, as for any switch."""
        return {"1": self.const, "0": ""}.get(text.strip(), text)


class Switch(_Noting):
    """Off, unless its flag is given or its variable is a number other than 0."""

    def __init__(self, option_strings: Sequence[str], dest: str, **others: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, const=True, default=False, **others)

    def __call__(self, _: argparse.ArgumentParser, namespace: argparse.Namespace, *__: object) -> None:
        self.note(namespace, True)

    def from_text(self, variable: str, text: str) -> bool:
        """The value of ``variable``. Raises ``UsageError``."""
        try:
            return int(text) != 0
        except ValueError:
            raise UsageError(
                f"{variable}={text}: not a value that the flag takes", remedy="Flags take 0 or 1."
            ) from None


class Repeated(_Noting):
    """A flag that may be repeated: a list of its values, None if it was not given."""

    def __call__(self, _: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *__: object) -> None:
        self.note(namespace, [*(getattr(namespace, self.dest) or ()), values])
