"""Foreign text on its way to people: what others have written must neither control a terminal nor pass for our lines.

Host names, reasons, keys, run ids and names of proxies come from whoever reaches a port. When such a text becomes part
of a message it goes through ``printable``; everything that the commands print goes through ``printable_lines``.
``some`` keeps a message with many names short. The name of a key is read by ``name_of``.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable
from typing import Any

logger = logging.getLogger(__name__)

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST = 1000
_LONGEST_LINE = 8000
_NAMED = 8
_LONGEST_NAME = 80
_TOLD_ONCE = 64
"""Keys that are remembered as told of: lists bring them again and again, and a stranger may write any number."""


def printable(text: str, most: int = _LONGEST) -> str:
    """``text`` as one line of at most about ``most`` characters; what is not printable is escaped.

    Colours, which the last lines of a worker may have, are left out. Raises nothing.
    """
    if not text.isprintable():
        text = "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode() for each in _COLOURS.sub("", text)
        )
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} more)"


def printable_lines(text: str) -> str:
    """Several lines made printable; those after the first are indented, so that none looks like a new message."""
    first, *others = text.split("\n")
    lines = [each if not each or each.startswith(" ") else f"  {each}" for each in others]
    return "\n".join(printable(line.replace("\t", "    "), _LONGEST_LINE) for line in (first, *lines))


def printable_data(data: Any) -> Any:
    """A copy of decoded JSON, with all its texts ``printable``. Raises nothing."""
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, dict):
        return {printable_data(key): printable_data(value) for key, value in data.items()}
    return [printable_data(each) for each in data] if isinstance(data, list | tuple) else data


def some(names: Iterable[object], most: int = _NAMED, *, of: int | None = None) -> str:
    """The first few names, and how many more there are: ``a, b and 7 more``.

    ``of``: how many there are in all, if ``names`` are not all of them.
    """
    listed = list(names)
    more = (len(listed) if of is None else of) - len(listed[:most])
    return ", ".join(map(str, listed[:most])) + (f" and {more} more" if more > 0 else "")


def many(count: int, one: str, more: str = "") -> str:
    """A number with its noun: ``1 worker``, ``2 workers``."""
    return f"{count} {one if count == 1 else more or one + 's'}"


def name_of(key: bytes) -> str | None:
    """The name of a key that a service holds; None, after a warning, if it is not UTF-8: no node has written it.

    For every reader of keys, so that what a stranger writes costs nobody the session.
    """
    try:
        return key.decode()
    except UnicodeDecodeError:
        _warn_not_text(key)
        return None


@functools.lru_cache(_TOLD_ONCE)
def _warn_not_text(key: bytes) -> None:
    cut = "" if len(key) <= _LONGEST_NAME else f" and {len(key) - _LONGEST_NAME} more bytes"
    logger.warning(
        "key %r%s of the rendezvous is left out: its name is not UTF-8, so no node has written it",
        key[:_LONGEST_NAME],
        cut,
    )
