"""Every variable that torchrun's agent gives a worker."""

from __future__ import annotations

from collections.abc import Mapping

from rdzv_launcher.run.workers.spec import WorkersSpec
from rdzv_launcher.run.workers.virtual_ranks import devices_of
from rdzv_launcher.run.workers.worker_group import Worker, WorkerGroup

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Where a worker records its exception; empty: nowhere. Set with the other files; for the agent, by a scheduler."""
_THREADS = "OMP_NUM_THREADS"
_NCCL = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_NEVER_SENT = "SIGURG"
"""Stands for no signal at all: torch's way of starting processes rejects an empty list."""


def worker_variables(
    spec: WorkersSpec, group: WorkerGroup, worker: Worker, environ: Mapping[str, str], *, use_agent_store: bool = True
) -> dict[str, str]:
    """The variables added to the agent's own ``environ`` for one worker. Raises ``UsageError`` if it has no device.

    ``use_agent_store``: the workers find the store served at the master's address, and rank 0 does not serve it.
    """
    variables = {
        "RANK": str(worker.global_rank),
        "GROUP_RANK": str(group.group_rank),
        "ROLE_RANK": str(worker.role_rank),
        "ROLE_NAME": spec.role,
        "LOCAL_WORLD_SIZE": str(spec.nproc),
        "WORLD_SIZE": str(worker.world_size),
        "GROUP_WORLD_SIZE": str(group.group_world_size),
        "ROLE_WORLD_SIZE": str(worker.role_world_size),
        "MASTER_ADDR": group.store.master_addr if group.store else "",
        "MASTER_PORT": str(group.store.master_port) if group.store else "",
        "TORCHELASTIC_RESTART_COUNT": str(group.restarts_used),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        "TORCHELASTIC_RUN_ID": spec.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(use_agent_store),
        _NCCL: environ.get(_NCCL, "1"),
        # for a worker that starts processes the way torch does
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(number.name for number in spec.signals) or _NEVER_SENT,
        "LOCAL_RANK": "0" if spec.virtual_local_rank else str(worker.local_rank),
    }
    if spec.virtual_local_rank:
        variables |= devices_of(worker.local_rank, environ)
    if spec.nproc > 1 and _THREADS not in environ:
        variables[_THREADS] = "1"
    return variables
