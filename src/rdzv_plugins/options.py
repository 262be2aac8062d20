"""--rdzv-conf: from text to a backend's options dataclass, with errors that name key, backend and what is accepted.

A backend declares its options as a frozen dataclass, one field per key::

    @dataclass(frozen=True)
    class MyOptions:
        read_timeout: float = option(60.0, help="Limit of one read.", unit="s", minimum=0.1)

Field types: ``bool``, ``int``, ``float``, ``str``, ``Literal[...]``, ``PortRange``, each also ``| None``. For another
type, declare the field as ``str`` and convert it in ``__post_init__``, whose ``ValueError`` becomes an ``OptionError``.

docs/reference/options.md is written from the options of the built-in backends, by ``python docs/generate.py``. Nothing
here keeps state: all of it may be called from any thread.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from msgspec import Struct

from rdzv_plugins.errors import OptionError, UsageError

_TRUE = ("1", "true", "t", "yes", "y")
_FALSE = ("0", "false", "f", "no", "n")
_QUOTES = "'\""

T = TypeVar("T")


def option(
    default: Any,
    *,
    help: str,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """A dataclass field that is an option: its default, one line of help, its unit and its range (inclusive).

    ``unit`` is for numbers, in the way of ``"s"`` and ``"bytes"``. The default itself is not checked against the range.
    """
    return dataclasses.field(
        default=default, metadata={"help": help, "unit": unit, "minimum": minimum, "maximum": maximum}
    )


class PortRange(Struct, frozen=True):
    """TCP ports ``first`` to ``last`` inclusive; 0-0 leaves the choice to the kernel. Iterates over its ports."""

    first: int = 0
    last: int = 0

    def __iter__(self) -> typing.Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    @staticmethod
    def parse(text: str) -> PortRange:
        """A range from ``0``, ``29501`` or ``29501-29510``. Raises ``ValueError``."""
        first, _, last = text.partition("-")
        ports = PortRange(int(first), int(last or first))
        if not 0 <= ports.first <= ports.last <= 65535:
            raise ValueError("not a port range")
        return ports


@dataclass(frozen=True)
class WorkerStoreOptions:
    """Options of every backend whose workers get their store from rank 0's agent."""

    store: Literal["torch", "parallel"] = option(
        "torch", help="Server of the workers' store: torch (torch's own) or parallel (native, with several threads)."
    )
    store_threads: int = option(
        0, help="Threads of the native store; 0: half of the processors, at most 8.", minimum=0, maximum=64
    )
    stored_bytes: int = option(
        0,
        help="Limit of the native store's keys and values; 0: a quarter of the memory.",
        unit="bytes",
        minimum=0,
    )
    worker_ports: PortRange = option(
        PortRange(),
        help="Port or range (29501-29510, used in turn) of the workers' store on rank 0's node; 0: any.",
    )

    @property
    def is_native(self) -> bool:
        """Whether the store is the native one, with or without proxies, and not torch's own."""
        return self.store != "torch"


class OptionInfo(Struct, frozen=True):
    """One accepted key, for lists and documents."""

    name: str
    type: str
    """The type in words, with unit and range, such as ``a number (s), at least 0.1``."""
    default: str | None
    """The default as the user would write it; None: unset; ``REQUIRED``: it has to be given."""
    unit: str
    help: str


def parse_conf(text: str) -> dict[str, str]:
    """Split ``k=v,k=v`` as torchrun does. Raises ``UsageError`` for half a pair, or a key with two values."""
    conf: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, sign, value = (part.strip() for part in pair.partition("="))
        if not key or not sign or not value:
            raise UsageError(
                f"--rdzv-conf: {pair!r} is not of the form key=value",
                remedy="Write --rdzv-conf=key1=value1,key2=value2",
            )
        if conf.get(key, value) != value:
            raise UsageError(
                f"--rdzv-conf gives {key!r} twice: {conf[key]!r} and {value!r}", remedy="Keep one of them."
            )
        conf[key] = value
    return conf


def parse_options(cls: type[T], conf: Mapping[str, Any], owner: str) -> T:
    """Fill the options dataclass ``cls`` from ``conf``. Values are text, or already of the field's type.

    ``owner`` says in messages whose options they are: ``backend 'static'``. Raises ``OptionError`` naming the key,
    the owner and what is accepted.
    """
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values = {}
    for key, raw in conf.items():
        if key not in fields:
            _refuse_quotes(key, key, fields, owner)
            raise OptionError(
                f"--rdzv-conf: {owner} has no option {key!r}{did_you_mean(key, fields)}",
                remedy=f"It accepts: {', '.join(sorted(fields))}." if fields else "It has no options.",
            )
        values[key] = _convert(key, raw, hints[key], fields[key].metadata, owner)
    missing = [name for name, f in fields.items() if _default(f) is dataclasses.MISSING and name not in values]
    if missing:
        raise OptionError(
            f"--rdzv-conf: {owner} needs option {', '.join(map(repr, missing))}",
            remedy=f"Give --rdzv-conf={missing[0]}=VALUE.",
        )
    try:
        return cls(**values)
    except ValueError as error:  # fields that do not fit together, or a range that the class itself checks
        raise OptionError(f"--rdzv-conf: {owner}: {error}") from None


def describe_options(cls: type | None) -> list[OptionInfo]:
    """The accepted keys of an options dataclass, in order of declaration; empty for None.

    Raises ``TypeError`` or ``NameError`` for a class that is no dataclass or whose annotations cannot be read.
    """
    if cls is None:
        return []
    hints = typing.get_type_hints(cls)
    return [
        OptionInfo(
            name=f.name,
            type=_accepted(hints[f.name], f.metadata),
            default=_default_text(_default(f)),
            unit=f.metadata.get("unit", ""),
            help=f.metadata.get("help", ""),
        )
        for f in dataclasses.fields(cls)
    ]


def _default(field: dataclasses.Field[Any]) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def _default_text(default: Any) -> str | None:
    if default is dataclasses.MISSING:
        return "REQUIRED"
    return None if default is None else str(default)


def did_you_mean(word: str, known: typing.Iterable[str]) -> str:
    """``"; did you mean 'x'?"``, or nothing when no known word is near."""
    import difflib  # slow

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def _convert(key: str, raw: Any, hint: Any, metadata: Mapping[str, Any], owner: str) -> Any:
    try:
        return read_value(raw, hint, metadata)
    except (ValueError, TypeError):
        _refuse_quotes(key, str(raw), (), owner)
        raise OptionError(
            f"--rdzv-conf: {key}={raw} is not accepted by {owner}",
            remedy=f"{key} takes {_accepted(hint, metadata)}.",
        ) from None


def read_value(raw: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
    """A value of the type ``hint``, from text, within the ``minimum`` and ``maximum`` of its field.

    Raises ``ValueError`` or ``TypeError``.
    """
    value = _parse(raw, strip_none(hint))
    low, high = metadata.get("minimum"), metadata.get("maximum")
    if (low is not None and value < low) or (high is not None and value > high):
        raise ValueError("out of range")
    return value


def _refuse_quotes(key: str, text: str, known: typing.Container[str], owner: str) -> None:
    """A list in YAML or Python passes on quotes that a shell would have taken away. Raises ``OptionError`` for them."""
    bare = text.strip(_QUOTES)
    if bare != text and (bare in known or text is not key):
        raise OptionError(
            f"--rdzv-conf: option {key.strip(_QUOTES)!r} of {owner} was passed with quotes: {text}",
            remedy="Remove them: in a list or in YAML no shell does that.",
        )


def _parse(raw: Any, kind: Any) -> Any:
    if typing.get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in typing.get_args(kind)}
        for same in (str, str.lower):  # torch ignores the case of its own
            for name, choice in choices.items():
                if same(name) == same(str(raw)):
                    return choice
        raise ValueError(raw)
    if kind is bool:
        text = str(raw).lower()
        if text not in _TRUE + _FALSE:
            raise ValueError(raw)
        return text in _TRUE
    if kind is PortRange:
        return raw if isinstance(raw, PortRange) else PortRange.parse(str(raw))
    value = kind(raw)
    if kind is float and not abs(value) < float("inf"):
        raise ValueError(raw)
    return value


def strip_none(hint: Any) -> Any:
    """The type ``T`` of ``T | None``; any other type as it is."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(arg for arg in typing.get_args(hint) if arg is not type(None))
    return hint


def _accepted(hint: Any, metadata: Mapping[str, Any]) -> str:
    """Words for what a field takes: ``a number of seconds, at least 0.1``."""
    kind = strip_none(hint)
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    words = {bool: "true or false", int: "a whole number", float: "a number", PortRange: "a port or a range of ports"}
    text = words.get(kind, "text")
    if metadata.get("unit"):
        text += f" ({metadata['unit']})"
    return text + within(metadata)


def within(metadata: Mapping[str, Any]) -> str:
    """Words for the range of a field, to stand behind those for its type: ``, at least 0.1``; empty without one."""
    low, high = metadata.get("minimum"), metadata.get("maximum")
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}"
    if low is not None:
        return f", at least {low:g}"
    return f", at most {high:g}" if high is not None else ""
