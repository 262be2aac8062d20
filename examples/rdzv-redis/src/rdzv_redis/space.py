"""Where the keys of a run lie in Redis, and how they look there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from rdzv_plugins import Event, KeyValue
from rdzv_plugins.kit import name_of

NOBODY = b"-"
"""The owner of a key that belongs to no session."""


class Space:
    """The keys of run ``run_id`` under ``prefix``."""

    def __init__(self, prefix: str, run_id: str) -> None:
        self.prefix = prefix
        path = f"{prefix}/{quote(run_id, safe='')}/"  # no id is the beginning of another's path
        names = ("state", "values", "names", "events", "sessions", "owners", "answers")
        self.keys = [path + name for name in names]
        self.events = f"{path}events"
        """The stream of the changes."""


def held(key: str, packed: bytes) -> KeyValue:
    """A key as ``run.lua`` keeps it: revision, owner and value."""
    revision, _, value = packed.split(b" ", 2)
    return KeyValue(key, value, int(revision))


def listed(flat: Sequence[bytes]) -> list[KeyValue]:
    """The keys of a list, in the order of their revisions."""
    named = ((name_of(key), packed) for key, packed in zip(flat[::2], flat[1::2], strict=True))
    found = [held(name, packed) for name, packed in named if name is not None]
    return sorted(found, key=lambda each: each.revision)


def entry(raw: Sequence[Any]) -> tuple[int, dict[bytes, bytes], Event | None]:
    """Revision and fields of an entry of the stream, and the change that it tells of: none if it is of no key."""
    number, flat = raw
    revision, fields = int(number.partition(b"-")[0]), dict(zip(flat[::2], flat[1::2], strict=True))
    name = name_of(fields[b"k"]) if b"k" in fields else None
    return revision, fields, None if name is None else Event(name, fields.get(b"v"), revision)
