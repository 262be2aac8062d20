"""The name of this backend, and where its keys are in the control store."""

from __future__ import annotations

NAME = "static"


def run_prefix(run_id: str) -> str:
    """The prefix of all keys of a run."""
    return f"rdzv_plugins.{NAME}.{run_id}"
