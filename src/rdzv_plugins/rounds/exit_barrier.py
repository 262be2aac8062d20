"""The keys of the exit barrier of torch's agent (agent/server/api.py), in the agents' store of a round.

rdzv-run uses them, too: nodes of plain torchrun may be part of the same job.
"""

from __future__ import annotations

BARRIER = "torchelastic/agent/terminal_state"
ARRIVALS = f"{BARRIER}/num_members"
"""Counts the nodes whose workers have succeeded."""
LAST = f"{BARRIER}/last_member"
"""The key that is written by the last node whose workers have succeeded."""


def node_key(rank: int) -> str:
    """Written by each node of rdzv-run, so that a waiting node can name the others; torch's own nodes do not."""
    return f"{BARRIER}/node/{rank}"
