"""The domain of a node: what it shares with nodes near it, in the network or in terms of power supply."""

from __future__ import annotations

import os

from rdzv_plugins.errors import UsageError
from rdzv_plugins.interfaces import Request

VARIABLE = "RDZV_DOMAIN"
"""The variable for a domain, where that is easier to set than a flag: in a pod, it can come from a label."""
_LONGEST = 128


def domain_of(request: Request) -> str:
    """Return the option ``domain``, else RDZV_DOMAIN, else what a scheduler's plug-in knows; empty if none is given.

    Raises ``UsageError`` for a value that cannot be displayed or is too long.
    """
    option = getattr(request.options, "domain", None)
    said = {"--rdzv-conf domain": option or "", VARIABLE: os.environ.get(VARIABLE, ""), "the scheduler": request.domain}
    source, domain = next(((source, name.strip()) for source, name in said.items() if name.strip()), ("", ""))
    if len(domain) > _LONGEST or not domain.isprintable():
        shown = f"{domain[:40]!a}"
        raise UsageError(
            f"the domain of this node, {shown} of {source}, cannot be used: it has {len(domain)} characters, of which "
            "some may not be printable",
            remedy=f"Use at most {_LONGEST} printable ones.",
        )
    return domain
