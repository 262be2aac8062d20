"""Requests, replies and pushes of a coordination session, as bytes: operations 3 to 9 of native/PROTOCOL.md.

Decoding raises ``ValueError`` for malformed bytes. Keys whose names are not text, which servers of an earlier version
take, are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from rdzv_plugins.coordination import Event, KeyValue
from rdzv_plugins.plain_text import name_of

OPEN, PUT, LIST, WATCH, UNWATCH, DELETE, KEEP_ALIVE = range(3, 10)
PUSH, OTHER_RUN, COMPACTED, FOREIGN_RUN = 2, 3, 4, 11
"""Statuses besides done and refused. A push has number 0: it answers no request."""

MOST_PAYLOAD = 16 * 2**20 - 5
"""The most bytes that the server accepts after the head of one frame."""

_EPHEMERAL, _GUARDED = 1, 2
_GONE = 1

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_OPENED = struct.Struct("<QQI")
_CHANGED = struct.Struct("<BQ")
_LISTED = struct.Struct("<QI")
_ITEM = struct.Struct("<QI")
_PUSHED = struct.Struct("<II")
_EVENT = struct.Struct("<BQI")

Result = TypeVar("Result")


class Opened(NamedTuple):
    """A session: its number, the revision when it began, and this machine's address as the server sees it."""

    session: int
    revision: int
    seen_as: str
    any_run: bool
    """Whether the server is open to any run, and not only to this one."""


class Changed(NamedTuple):
    """The result of a put or a delete; if it was not done, ``revision`` and ``value`` are those of the guard now."""

    done: bool
    revision: int
    value: bytes


def open_(ttl_ms: int, run: str) -> bytes:
    """The request for a session of run ``run``, answered by ``opened``."""
    return _U32.pack(ttl_ms) + _text(run.encode())


def put(items: Mapping[str, bytes], *, ephemeral: bool, guard: tuple[str, int] | None) -> bytes:
    """The request to put keys. ``guard`` is a key and its revision; revision 0 means that it must be absent."""
    parts = [_condition(_EPHEMERAL if ephemeral else 0, guard), _U32.pack(len(items))]
    for key, value in items.items():
        name = key.encode()
        parts += (_U32.pack(len(name)), name, _U32.pack(len(value)), value)
    return b"".join(parts)


def delete(keys: Iterable[str], *, guard: tuple[str, int] | None) -> bytes:
    """The request to delete keys; ``guard`` as in ``put``. Both are answered by ``changed``."""
    names = [_text(key.encode()) for key in keys]
    return b"".join((_condition(0, guard), _U32.pack(len(names)), *names))


def list_(prefix: str) -> bytes:
    """The request for all keys with a prefix, answered by ``listed``."""
    return _text(prefix.encode())


def watch(number: int, prefix: str, after: int) -> bytes:
    """The request for a watch. The client chooses ``number``; pushes carry it."""
    return _U32.pack(number) + _text(prefix.encode()) + _U64.pack(after)


def unwatch(number: int) -> bytes:
    """The request to end a watch. No push of watch ``number`` follows the answer."""
    return _U32.pack(number)


def decoded(read: Callable[[bytes], Result], payload: bytes) -> Result:
    """Return ``read(payload)``, raising one kind of error for anything wrong. Raises ``ValueError``."""
    try:
        return read(payload)
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"{read.__name__}: {error}") from None


def opened(payload: bytes) -> Opened:
    """Read the answer to a request that ``open_`` made."""
    session, revision, size = _OPENED.unpack_from(payload)
    seen_as = _cut(payload, _OPENED.size, size).decode()
    return Opened(session, revision, seen_as, any_run=_cut(payload, _OPENED.size + size, 1) != b"\0")


def changed(payload: bytes) -> Changed:
    """Read the answer to a put or a delete; the number of keys that a delete has affected is ignored."""
    done, revision = _CHANGED.unpack_from(payload)
    if done:
        return Changed(True, revision, b"")
    (size,) = _U32.unpack_from(payload, _CHANGED.size)
    return Changed(False, revision, _cut(payload, _CHANGED.size + _U32.size, size))


def listed(payload: bytes) -> tuple[list[KeyValue], int]:
    """Read the keys, and the revision of the answer."""
    revision, count = _LISTED.unpack_from(payload)
    at = _LISTED.size
    found = []
    for _ in range(count):
        (size,) = _U32.unpack_from(payload, at)
        at += _U32.size
        key = name_of(_cut(payload, at, size))
        at += size
        changed_at, size = _ITEM.unpack_from(payload, at)
        at += _ITEM.size
        value = _cut(payload, at, size)
        at += size
        if key is not None:
            found.append(KeyValue(key, value, changed_at))
    return found, revision


def pushed_to(payload: bytes) -> int:
    """Read the number of the watch that a push is for."""
    (number,) = _U32.unpack_from(payload)
    return int(number)


def pushed(payload: bytes) -> list[Event]:
    """Read the events of a push, in order of their revisions."""
    _, count = _PUSHED.unpack_from(payload)
    at = _PUSHED.size
    events = []
    for _ in range(count):
        kind, revision, size = _EVENT.unpack_from(payload, at)
        at += _EVENT.size
        key = name_of(_cut(payload, at, size))
        at += size
        (size,) = _U32.unpack_from(payload, at)
        at += _U32.size
        value = _cut(payload, at, size)
        at += size
        if key is not None:
            events.append(Event(key, None if kind == _GONE else value, revision))
    return events


def _text(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


def _condition(flags: int, guard: tuple[str, int] | None) -> bytes:
    if guard is None:
        return bytes((flags,))
    key, revision = guard
    return bytes((flags | _GUARDED,)) + _text(key.encode()) + _U64.pack(revision)


def _cut(payload: bytes, at: int, size: int) -> bytes:
    part = payload[at : at + size]
    if len(part) != size:
        raise ValueError(f"{size} bytes announced, {len(part)} there")
    return part
