"""A worker's environment: the agent's own variables, every one that torchrun gives a worker, and what others add.

It is put together here. Only the error file's variable comes later, with the files (``LogsSpecs`` of torch does both).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from rdzv_launcher.run.supervisor.messages import Preload, Start
from rdzv_launcher.run.workers.spec import WorkersSpec, bound, devices_of
from rdzv_launcher.run.workers.worker_group import Worker, WorkerGroup

if TYPE_CHECKING:
    from rdzv_launcher.run.workers.output.output import WorkerOutput


ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Where a worker records its exception; empty: nowhere. Set with the other files; for the agent, by a scheduler."""
FILE_TIMER, TIMER_FILE = "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE"
"""The agent's own, if its user wants torch's watchdog: 1 for one, and where; see ``torch_classes``."""
_THREADS = "OMP_NUM_THREADS"
_NCCL = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_NEVER_SENT = "SIGURG"
"""Stands for no signal at all: torch's way of starting processes rejects an empty list."""

Additions: TypeAlias = Callable[[Worker, Mapping[str, str]], Iterable[Mapping[str, str]]]
"""Further variables for a worker that is about to be started, each over those before it; gets those so far, which grow
meanwhile.
"""


def worker_variables(
    spec: WorkersSpec,
    group: WorkerGroup,
    worker: Worker,
    environ: Mapping[str, str],
    *,
    use_agent_store: bool = True,
    additions: Additions = lambda worker, own: (),
) -> dict[str, str]:
    """What a worker has beyond the agent's own ``environ``: every variable that torchrun's agent gives it, and more.

    ``use_agent_store``: the workers find the store served at the master's address, and rank 0 does not serve it. Raises
    ``UsageError`` if there is no device for the worker, and as the ``additions`` do.
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
    for more in additions(worker, variables):
        variables |= more
    return variables


def preload_of(spec: WorkersSpec, environ: Mapping[str, str]) -> Preload | None:
    """What the supervisor is asked to preload; None for nothing."""
    if not spec.preload:
        return None
    common = {**environ} if spec.nproc == 1 else {"OMP_NUM_THREADS": "1", **environ}
    return Preload(modules=spec.preload, command=spec.program.command(0), environment=common)


def followed(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command with which a debugger that follows the children of this process follows the worker, too.

    pydevd (debugpy, VS Code, PyCharm) rewrites what this process starts. Workers are started by the supervisor, where
    no debugger is.
    """
    pydevd = sys.modules.get("_pydev_bundle.pydev_monkey")
    if pydevd is None or not hasattr(os, "original_execve"):  # it is not to follow children
        return command
    return tuple(pydevd.patch_args(list(command)))


def prepare_starts(
    spec: WorkersSpec,
    group: WorkerGroup,
    output: WorkerOutput,
    use_agent_store: bool,
    additions: Additions = lambda worker, own: (),
) -> tuple[Start, ...]:
    """What to start for this round; by the time this returns, its log files exist, and --tee has begun.

    ``additions`` are those of ``worker_variables``. Raises ``RdzvError`` if nothing can be started.
    """
    commands = {
        worker.local_rank: bound(
            followed(spec.program.command(worker.local_rank)), worker.local_rank, spec.numa_binding
        )
        for worker in group.workers
    }
    variables = {
        worker.local_rank: worker_variables(
            spec, group, worker, os.environ, use_agent_store=use_agent_store, additions=additions
        )
        for worker in group.workers
    }
    destinations = output.begin(variables)
    return tuple(
        Start(
            local_rank=local_rank,
            command=command,
            environment={**os.environ, **variables[local_rank]},
            stdout=destinations.stdout.paths[local_rank],
            stderr=destinations.stderr.paths[local_rank],
        )
        for local_rank, command in commands.items()
    )
