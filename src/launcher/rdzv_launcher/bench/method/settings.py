"""What a benchmark may be asked for, declared once: a frozen dataclass whose fields make flags, checks and manifest.

A field is a flag of its name, without the unit at its end (``limit_s`` is ``--limit``)::

    @dataclass(frozen=True)
    class MySettings:
        repeats: int = setting(5, quick=1, metavar="N", minimum=1, help="turns of all targets (default {default})")
        limit_s: float = setting(60.0, metavar="SECONDS", minimum=1, maximum=3600, help="of one run")

Field types: ``bool``, ``int``, ``float``, ``str``, ``tuple[int, ...]`` and ``tuple[str, ...]`` (``A,B``, each once),
and ``tuple[int, int]`` (``4x8``); each but ``bool`` also ``| None``. What has to fit together is checked in
``__post_init__``, which raises ``UsageError``. ``dataclasses.asdict`` is what the manifest says of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from rdzv_plugins.errors import UsageError
from rdzv_plugins.options import read_value, strip_none, within

T = TypeVar("T")

_NONE = "none"
_UNITS = {"SECONDS": " of seconds", "MS": " of milliseconds"}


def setting(
    default: Any,
    *,
    help: str = "",
    metavar: str | None = None,
    quick: Any = dataclasses.MISSING,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
    none: Any = dataclasses.MISSING,
    alone: str = "",
) -> Any:
    """A field of a settings class. Without ``help``, in which ``{default}`` stands for the default, it has no flag.

    ``quick``: its value with ``--quick``. ``minimum`` and ``maximum`` apply to each number, ``choices`` to each word.
    ``none``: what the word "none" means. ``alone``: what the flag means without a value.
    """
    metadata = {
        "help": help,
        "metavar": metavar,
        "quick": quick,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "none": none,
        "alone": alone,
    }
    return dataclasses.field(default=default, metadata=metadata)


def add_flags(parser: argparse.ArgumentParser, settings: type, quick: str, facts: Mapping[str, object]) -> None:
    """Add the flags of a settings class, in the order of its fields, and ``--quick``; ``quick`` says what that does.

    A help text may contain ``%(name)s`` for one of ``facts``, whose text is only asked for when the help is.
    """
    hints = typing.get_type_hints(settings)
    for field in dataclasses.fields(settings):
        about = field.metadata
        if not about["help"]:
            continue
        switch = {"action": "store_const", "const": True}
        kind: dict[str, Any] = switch if hints[field.name] is bool else {"metavar": about["metavar"]}
        if about["alone"]:
            kind |= {"nargs": "?", "const": about["alone"]}
        text = about["help"].replace("{default}", as_text(field.default))
        flag = parser.add_argument(flag_of(field.name), dest=field.name, help=text, **kind)
        vars(flag).update(facts)
    parser.add_argument("--quick", action="store_true", help=f"{quick}: to see that it works, not for figures")


def read(settings: type[T], args: argparse.Namespace) -> T:
    """The values that ``add_flags`` has parsed. Raises ``UsageError``, which names the flag and what it takes."""
    hints = typing.get_type_hints(settings)
    values = {}
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        raw = getattr(args, field.name) if field.metadata["help"] else None
        if raw is not None:
            values[field.name] = _value(flag_of(field.name), raw, hints[field.name], field.metadata)
        elif args.quick and field.metadata["quick"] is not dataclasses.MISSING:
            values[field.name] = field.metadata["quick"]
    return settings(**values)


def flag_of(name: str) -> str:
    """The flag of the field with this name."""
    return "--" + re.sub(r"_m?s$", "", name).replace("_", "-")


def as_text(value: Any) -> str:
    """A value as it would be written after its flag."""
    if value is None or value == ():
        return _NONE
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _value(flag: str, raw: Any, hint: Any, about: Mapping[str, Any]) -> Any:
    if raw == _NONE and about["none"] is not dataclasses.MISSING:
        return about["none"]
    kind = strip_none(hint)
    if typing.get_origin(kind) is not tuple:
        return _one(flag, raw, kind, about)
    each, *others = typing.get_args(kind)
    if others == [Ellipsis]:
        return tuple(dict.fromkeys(_one(flag, part, each, about) for part in raw.split(",")))
    parts = raw.split("x")
    if len(parts) != 1 + len(others) or not all(part.isdecimal() for part in parts):
        raise UsageError(f"{flag}={raw}: two whole numbers, as in 4x8, or {_NONE}")
    return tuple(_one(flag, part, each, about) for part in parts)


def _one(flag: str, raw: Any, kind: Any, about: Mapping[str, Any]) -> Any:
    if about["choices"] and raw not in about["choices"]:
        raise UsageError(f"{flag}: '{raw}' is none of {', '.join(about['choices'])}")
    try:
        return read_value(raw, kind, about)
    except ValueError:
        unit = _UNITS.get(about["metavar"], "")
        limits = within(about)
        comma = "," if limits.startswith(",") else ""
        words = "a whole number" if kind is int else f"a number{unit}"
        raise UsageError(f"{flag}={raw}: {words}{limits}{comma} is needed") from None
