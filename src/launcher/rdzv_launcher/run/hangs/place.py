"""This node's place in the job, as the watch for hangs is told it by the agent."""

from __future__ import annotations

from msgspec import Struct

from rdzv_launcher.run.stacks.workers import Worker


class Place(Struct, frozen=True):
    """Where this node is now. Any thread may have it."""

    node_rank: int = -1
    nodes: int = 0
    """Those of the round."""
    generation: int = 0
    """Counts the starts of workers on this node."""
    works: bool = False
    """Its workers run, or are done and wait for those of others."""
    workers: tuple[Worker, ...] = ()
