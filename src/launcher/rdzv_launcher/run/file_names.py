"""Run ids and hosts as parts of file names: whoever chooses them does not get to choose the directory, too."""

from __future__ import annotations

import re

_LONGEST = 60
_LONGEST_BYTES = 200
"""A name may have at most 255 bytes, and ours contain more than this part."""


def word(text: str) -> str:
    """``text`` as letters, digits and ``_.-``, at most 60 characters; does not begin with a dot, and is not empty."""
    return re.sub(r"[^\w.-]", "_", text, flags=re.ASCII)[:_LONGEST].lstrip(".") or "_"


def component(text: str) -> str:
    """``text`` unchanged, except what would lead elsewhere or is invisible. At most 200 bytes, for part of a name."""
    safe = "".join("_" if each == "/" or not each.isprintable() else each for each in text)
    return safe.encode()[:_LONGEST_BYTES].decode(errors="ignore")
