"""The name of this backend, where it meets, and where torch's backend of that name keeps its state."""

from __future__ import annotations

NAME = "c10d"
DEFAULT_PORT = 29400


def state_key(run_id: str) -> str:
    """The key under which torch's backend keeps the state of a run."""
    return f"torch.rendezvous.{run_id}"
