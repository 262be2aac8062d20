"""Who works on a node now, as its agent knows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct


class Worker(Struct, frozen=True):
    """A worker of this node, and its ranks."""

    rank: int
    local_rank: int
    pid: int


class Node(Struct, frozen=True):
    """This node, as its agent knows it."""

    host: str
    agent: int
    """The process id of the agent."""
    run_id: str = ""
    node_rank: int | None = None
    workers: tuple[Worker, ...] = ()
    own_stacks: Path | None = None
    """The directory into which its workers write their stacks on request, if they have been told of one."""


def workers_in(pids: Mapping[int, int], ranks: Mapping[int, int]) -> tuple[Worker, ...]:
    """The workers in the order of their local ranks; ``pids`` and ``ranks`` say what the agent started, and as whom."""
    return tuple(Worker(ranks[local], local, pid) for local, pid in sorted(pids.items()) if ranks.get(local, -1) >= 0)
