"""Who works on a node now, as its agent knows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct


class Worker(Struct, frozen=True):
    """A worker of this node, and the ranks that it has."""

    rank: int
    local_rank: int
    pid: int


class Node(Struct, frozen=True):
    """This node, as its agent knows it."""

    host: str
    agent: int
    """Its process id."""
    run_id: str = ""
    node_rank: int | None = None
    workers: tuple[Worker, ...] = ()
    own_stacks: Path | None = None
    """The directory into which its workers write their stacks on request, if they have been told one."""


def workers_in(pids: Mapping[int, int], ranks: Mapping[int, int]) -> tuple[Worker, ...]:
    """The workers by their local ranks; ``pids`` and ``ranks`` are what the agent has started, and as whom."""
    return tuple(Worker(ranks[local], local, pid) for local, pid in sorted(pids.items()) if ranks.get(local, -1) >= 0)
