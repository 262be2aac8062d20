"""The names of the checks of --preflight, and which of them a text asks for."""

from __future__ import annotations

from rdzv_plugins.errors import UsageError
from rdzv_plugins.options import did_you_mean

OWN = ("disk", "memory", "cpu")
"""What a node tests by itself."""
BETWEEN = ("store", "network", "gloo")
"""What concerns the way to others, for a backend that knows them."""
PLUGINS = "plugins"
"""The hook ``rdzv_preflight``."""
NAMES = (*OWN, *BETWEEN, PLUGINS)
USUAL = "on"
"""All but gloo, which needs torch: importing that takes a second or more before every round."""
_WORDS = {USUAL: tuple(name for name in NAMES if name != "gloo"), "all": NAMES, "off": ()}


def read(text: str, what: str = "--preflight") -> tuple[str, ...]:
    """The checks in a list separated by commas or colons, in their usual order.

    Raises ``UsageError``, naming ``what``.
    """
    asked = [part.strip().lower() for part in text.replace(":", ",").split(",") if part.strip()]
    if len(asked) == 1 and asked[0] in _WORDS:
        return _WORDS[asked[0]]
    for name in asked:
        if name not in NAMES:
            raise UsageError(
                f"{what}={text}: there is no check {name!r}{did_you_mean(name, NAMES)}",
                remedy=f"The checks are {', '.join(NAMES)}; {USUAL} is all but gloo, all is all of them.",
            )
    return tuple(name for name in NAMES if name in asked)
