"""The keys of the exit barrier of torch's agent (agent/server/api.py), in the agents' store of a round.

rdzv-run uses them, too: nodes of plain torchrun may be part of the same job.
"""

from __future__ import annotations

from rdzv_plugins.rounds.looking import Shared, absent, looked_once

_PATIENCE_S = 5.0

BARRIER = "torchelastic/agent/terminal_state"
ARRIVALS = f"{BARRIER}/num_members"
"""Counts the nodes whose workers have succeeded."""
LAST = f"{BARRIER}/last_member"
"""The key that is written by the last node whose workers have succeeded."""


def node_key(rank: int) -> str:
    """Written by each node of rdzv-run, so that a waiting node can name the others; torch's own nodes do not."""
    return f"{BARRIER}/node/{rank}"


def missing(store: Shared, nodes: int) -> list[int]:
    """The ranks of the nodes that are not there yet. A few requests: of those that ask meanwhile, one looks."""
    key = f"{BARRIER}/missing/{store.add(ARRIVALS, 0)}"  # the list is the same until another one arrives
    return looked_once(store, key, lambda: absent(store, [node_key(rank) for rank in range(nodes)]), _PATIENCE_S)
