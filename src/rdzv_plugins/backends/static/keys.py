"""The name of this backend, and where its keys lie in the control store."""

from __future__ import annotations

NAME = "static"


def run_prefix(run_id: str) -> str:
    """All keys of a run begin with it."""
    return f"rdzv_plugins.{NAME}.{run_id}"
