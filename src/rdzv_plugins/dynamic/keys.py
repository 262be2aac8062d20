"""Our own keys beside torch's state of a dynamic rendezvous, for readers without torch."""

from __future__ import annotations

SETTINGS = "settings"
"""The key, under the run's prefix, of the first node's settings; the others compare theirs with them."""


def run_prefix(run_id: str) -> str:
    """The prefix of all our keys."""
    return f"rdzv_plugins.{run_id}"
