"""Run ids and hosts as parts of the names of files: whoever chooses them does not choose the directory, too."""

from __future__ import annotations

import re

_LONGEST = 60
_LONGEST_BYTES = 200
"""The most that a name may have is 255, and ours have more in them."""


def word(text: str) -> str:
    """``text`` as letters, digits and ``_.-``, of at most 60 characters; it begins with no dot, and is not empty."""
    return re.sub(r"[^\w.-]", "_", text, flags=re.ASCII)[:_LONGEST].lstrip(".") or "_"


def component(text: str) -> str:
    """``text`` as it is, save what would lead elsewhere or cannot be seen. At most 200 bytes; it is part of a name."""
    safe = "".join("_" if each == "/" or not each.isprintable() else each for each in text)
    return safe.encode()[:_LONGEST_BYTES].decode(errors="ignore")
