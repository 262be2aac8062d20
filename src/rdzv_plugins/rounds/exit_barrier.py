"""The keys of the exit barrier of torch's agent (agent/server/api.py), in the agents' store of a round.

rdzv-run uses them, too: nodes of plain torchrun may be part of the same job. One node looks at all the others and the
rest read what it found, so no node's requests grow with their number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import timedelta

from rdzv_plugins.errors import StoreTimeout
from rdzv_plugins.store import Store

_PATIENCE_S = 5.0

BARRIER = "torchelastic/agent/terminal_state"
ARRIVALS = f"{BARRIER}/num_members"
"""Counts the nodes whose workers have succeeded."""
LAST = f"{BARRIER}/last_member"
"""The key that is written by the last node whose workers have succeeded."""


def node_key(rank: int) -> str:
    """Written by each node of rdzv-run, so that a waiting node can name the others; torch's own nodes do not."""
    return f"{BARRIER}/node/{rank}"


def missing(store: Store, nodes: int) -> list[int]:
    """The ranks of the nodes that are not there yet. A few requests: of those that ask meanwhile, one looks."""
    key = f"{BARRIER}/missing/{store.add(ARRIVALS, 0)}"  # the list is the same until another one arrives
    return looked_once(store, key, lambda: absent(store, [node_key(rank) for rank in range(nodes)]), _PATIENCE_S)


def looked_once(store: Store, key: str, look: Callable[[], Iterable[int]], patience: float) -> list[int]:
    """The ranks that ``look`` finds: the first caller looks, and the others read them under ``key``.

    Whoever has waited ``patience`` seconds in vain looks for itself: the first one may have ended meanwhile.
    """
    if store.add(f"{key}/looks", 1) > 1:
        try:
            store.wait([key], timedelta(seconds=patience))
            return [int(rank) for rank in json.loads(store.get(key))]
        except StoreTimeout:
            pass
    found = list(look())
    store.set(key, json.dumps(found))
    return found


def absent(store: Store, keys: list[str], first: int = 0) -> list[int]:
    """The positions, from ``first`` on, of the keys that do not exist.

    Makes one request if all exist, and few if most do: halves are asked for where something is missing.
    """
    if not keys or store.check(keys):
        return []
    if len(keys) == 1:
        return [first]
    half = len(keys) // 2
    return [*absent(store, keys[:half], first), *absent(store, keys[half:], first + half)]
