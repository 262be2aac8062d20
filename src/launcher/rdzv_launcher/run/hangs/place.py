"""This node's place in the job, as the agent tells it to the watch for hangs."""

from __future__ import annotations

from msgspec import Struct

from rdzv_launcher.run.stacks.workers import Worker


class Place(Struct, frozen=True):
    """Where this node is now. Usable from any thread."""

    node_rank: int = -1
    nodes: int = 0
    """The number of nodes in the round."""
    generation: int = 0
    """Counts the starts of workers on this node."""
    works: bool = False
    """Its workers are running, or have finished and wait for those of other nodes."""
    workers: tuple[Worker, ...] = ()
