"""The tests that a node runs on itself before a round, with --preflight, whatever the backend: which are asked for."""

from __future__ import annotations

from rdzv_plugins.errors import UsageError
from rdzv_plugins.options import did_you_mean

PLUGINS = "plugins"
"""The hook ``rdzv_preflight``."""
NAMES = ("disk", "memory", "cpu", PLUGINS)
USUAL = "on"
_WORDS = {USUAL: NAMES, "all": NAMES, "off": ()}
_GONE = ("store", "network", "gloo")
"""What there was once: a measurement over TCP says nothing of the fabric that trains."""


def read(text: str) -> tuple[str, ...]:
    """The checks in a list separated by commas or colons, in their usual order. Raises ``UsageError``."""
    asked = [part.strip().lower() for part in text.replace(":", ",").split(",") if part.strip()]
    if len(asked) == 1 and asked[0] in _WORDS:
        return _WORDS[asked[0]]
    for name in asked:
        if name in _GONE:
            raise UsageError(
                f"--preflight={text}: there is no check {name!r}: the network between nodes is not tested",
                remedy="A plug-in can, in rdzv_preflight: see docs/guides/elastic.md#test-nodes-before-each-round.",
            )
        if name not in NAMES:
            raise UsageError(
                f"--preflight={text}: unknown check {name!r}{did_you_mean(name, NAMES)}",
                remedy=f"Checks: {', '.join(NAMES)}; {USUAL} for all of them.",
            )
    return tuple(name for name in NAMES if name in asked)
