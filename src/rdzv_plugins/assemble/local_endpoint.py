"""Jobs of several nodes at an endpoint that only this machine can reach: right only for agents on one machine.

On each of several machines it is a different place, and an elastic job would train once on each.
"""

from __future__ import annotations

import logging
import os

from rdzv_plugins.endpoints import is_only_local
from rdzv_plugins.errors import UsageError
from rdzv_plugins.interfaces import Request

logger = logging.getLogger(__name__)

_STEP_NODES = "SLURM_STEP_NUM_NODES"
"""srun's variable for the number of machines on which it has started this command; the job may have more."""


def meets_locally(request: Request, meets_at: str) -> bool:
    """True if several nodes are to meet at one of them that no other machine can reach.

    A service may be anywhere behind a loopback address: etcd's gateway or a tunnel has one on each machine.
    """
    return request.max_nodes > 1 and meets_at == "node" and is_only_local(request.endpoint)


def refuse_on_several_machines(request: Request) -> None:
    """Refuse a job that meets locally if it is known to have other machines. Raises ``UsageError``."""
    machines = os.environ.get(_STEP_NODES, "")
    if machines.isdecimal() and int(machines) > 1:
        raise UsageError(
            f"srun has started this command on {machines} machines, and {request.endpoint} is another "
            "place on each of them: they could not meet",
            remedy="Give --rdzv-endpoint=HOST:PORT, the same on all, with the first HOST that "
            '`scontrol show hostnames "$SLURM_JOB_NODELIST"` prints. (For agents on one machine: srun --nodes=1.)',
        )


def warn_of_small_round(request: Request, nodes: int) -> None:
    """Warn if a job that meets locally has formed a round with fewer nodes than it has room for."""
    logger.warning(
        "this round has %d of %d:%d nodes, and none on another machine can join it: there, %s is a job of its own. "
        "Unless all are meant to be here, give the address of one machine on all: --rdzv-endpoint=HOST:PORT",
        nodes,
        request.min_nodes,
        request.max_nodes,
        request.endpoint,
    )
