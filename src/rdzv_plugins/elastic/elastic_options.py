"""Options of every backend that runs on the elastic rendezvous; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rdzv_plugins.errors import UsageError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.options import WorkerStoreOptions, option


@dataclass(frozen=True)
class ElasticOptions(WorkerStoreOptions):
    """How long to wait for whom, and who serves what."""

    store: Literal["torch", "parallel"] = option(
        "parallel", help="Server of the workers' store: parallel, the native one, or torch's own."
    )
    timeout: float | None = option(
        None, help="Time within which a round has to complete; 600 when unset.", unit="s", minimum=1
    )
    join_timeout: float | None = option(
        None, help="The same as timeout, by the name that c10d uses.", unit="s", minimum=1
    )
    last_call_timeout: float = option(
        30, help="In a first round, further wait for more nodes once the minimum has joined.", unit="s", minimum=0
    )
    ttl: float = option(
        10, help="A node that is not heard of for this long is lost.", unit="s", minimum=0.5, maximum=3600
    )
    reach_timeout: float = option(
        15, help="Time within which a node has to reach the workers' store; at least ttl + 1.", unit="s", minimum=0.1
    )
    read_timeout: float = option(60, help="Limit of one read of the agents' store.", unit="s", minimum=1)
    linger: float = option(
        5, help="At the end, how long a node that serves others waits for them to leave.", unit="s", minimum=0
    )
    allow_same_host: bool = option(False, help="Two agents on one machine are meant to be two nodes: no warning.")

    @property
    def join_seconds(self) -> float:
        """The time-out of a round in force, in seconds."""
        return self.join_timeout or self.timeout or 600.0


def validate(request: Request) -> None:
    """What every elastic backend refuses before anything starts. Raises ``UsageError``."""
    if request.node_rank is not None and not 0 <= request.node_rank < request.max_nodes:
        raise UsageError(
            f"--node-rank={request.node_rank} is out of range for {request.max_nodes} node(s)",
            remedy=f"Node ranks go from 0 to {request.max_nodes - 1}.",
        )
