"""What a handler returns from a round: records with the same attributes as torch's, for handlers without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StoreInfo:
    """Where the workers of a round find their store (torch: ``RendezvousStoreInfo``)."""

    master_addr: str
    """Host name or address, as the workers get it in MASTER_ADDR."""
    master_port: int
    """TCP port, as the workers get it in MASTER_PORT."""


@dataclass(frozen=True)
class RoundInfo:
    """One round as a node sees it (torch: ``RendezvousInfo``). Nodes are counted, not workers."""

    store: Any
    """The agents' store of the round: a ``Store``, or one of torch's."""
    rank: int
    """The rank of this node, from 0."""
    world_size: int
    """The number of nodes of the round."""
    bootstrap_store_info: StoreInfo | None = None
    """Where the workers' store is; None leaves it to the first worker to serve one."""
