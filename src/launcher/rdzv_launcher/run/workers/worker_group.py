"""The workers of one node in one round: who they are, among those of all nodes."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from rdzv_plugins.interfaces import Failure, StoreAddress


class Worker(Struct, frozen=True):
    """One worker's place. Ranks count from 0; they may be different in the next round."""

    local_rank: int
    """Its rank among the workers of this node."""
    global_rank: int
    """Its rank among the workers of all nodes."""
    role_rank: int
    """Its rank among the workers of the same role."""
    world_size: int
    """The number of workers of all nodes."""
    role_world_size: int
    """The number of workers of the same role."""


class WorkerGroup(Struct, frozen=True):
    """This node's part of a round. Usable from any thread."""

    group_rank: int
    """The rank of this node."""
    group_world_size: int
    """The number of nodes."""
    workers: tuple[Worker, ...]
    """The workers of this node, by local rank."""
    store: StoreAddress | None = None
    """Where the workers' store is; None: the first worker serves one."""
    generation: int = 0
    """Counts the starts on this node, from 1; 0 before they are started."""
    restarts_used: int = 0
    """TORCHELASTIC_RESTART_COUNT: how many of --max-restarts this node has used."""
    pids: Mapping[int, int] = field(default_factory=dict)
    """The workers' pids, by local rank; empty before they are started."""

    @property
    def local_world_size(self) -> int:
        return len(self.workers)

    def failure(
        self, local_rank: int, exit_code: int, *, host: str, stderr: tuple[str, ...] = (), cause: str = ""
    ) -> Failure:
        """The end of a worker, as reported to the other nodes."""
        return Failure(
            node_rank=self.group_rank,
            host=host,
            global_rank=self.workers[local_rank].global_rank,
            local_rank=local_rank,
            pid=self.pids.get(local_rank, -1),
            exit_code=exit_code,
            stderr=stderr,
            cause=cause,
        )
