"""Keys of ours beside torch's state of a dynamic rendezvous, for who reads them without torch."""

from __future__ import annotations

SETTINGS = "settings"
"""The key, under the prefix of the run, of the first node's settings, with which the others compare theirs."""


def run_prefix(run_id: str) -> str:
    """All keys of ours begin with it."""
    return f"rdzv_plugins.{run_id}"
