"""Options by which torch's dynamic rendezvous notices a silent node about as late as backends with sessions do."""

from __future__ import annotations

KEEP_ALIVES = 3
"""So many in a row may be missing."""


def signs_of_life(ttl: float) -> dict[str, str]:
    """For a backend whose nodes write keep-alives; ``ttl``: seconds after which sessions end elsewhere."""
    return {"keep_alive_interval": str(keep_alive_s(ttl)), "keep_alive_max_attempt": str(KEEP_ALIVES)}


def keep_alive_s(ttl: float) -> int:
    """Whole seconds between two keep-alives: torch takes no others."""
    return max(1, round(ttl / KEEP_ALIVES))
