"""A worker's environment: the agent's own variables, every one that torchrun gives a worker, and what others add.

It is put together here. Only the error file's variable comes later, with the files (``LogsSpecs`` of torch does both).
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from rdzv_launcher.run.keeper.messages import Preload, Start
from rdzv_launcher.run.workers.program import bound
from rdzv_launcher.run.workers.worker_group import Worker, WorkerGroup
from rdzv_plugins.errors import UsageError

if TYPE_CHECKING:
    from rdzv_launcher.run.workers.output.output import Output
    from rdzv_launcher.run.workers.spec import WorkersSpec


ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Where a worker records its exception; empty: nowhere. Set with the other files; for the agent, by a scheduler."""
FILE_TIMER, TIMER_FILE = "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE"
"""The agent's own, if its user wants torch's watchdog: 1 for one, and where; see ``file_timer``."""
_THREADS = "OMP_NUM_THREADS"
_NCCL = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_NEVER_SENT = "SIGURG"
"""Stands for no signal at all: torch's way of starting processes rejects an empty list."""

_CUDA = "CUDA_VISIBLE_DEVICES"
"""ROCm's build of torch uses this variable, too."""
_HIP = "HIP_VISIBLE_DEVICES"
"""If it is set, ROCm goes by this one instead."""
_ASCEND = "ASCEND_RT_VISIBLE_DEVICES"

Addition: TypeAlias = Callable[[WorkerGroup, Worker, Mapping[str, str]], Mapping[str, str]]
"""Returns variables for a worker of the group that is about to be started; gets those that it has so far."""


def variables_of(
    spec: WorkersSpec,
    group: WorkerGroup,
    environ: Mapping[str, str],
    *,
    use_agent_store: bool,
    additions: Sequence[Addition] = (),
) -> dict[int, dict[str, str]]:
    """What each worker of a round has beyond the agent's own ``environ``, by local rank.

    Each of the ``additions`` takes precedence over those before it. Raises as ``worker_variables`` and the additions.
    """
    found = {}
    for worker in group.workers:
        variables = worker_variables(spec, group, worker, environ, use_agent_store=use_agent_store)
        for more in additions:
            variables |= more(group, worker, dict(variables))
        found[worker.local_rank] = variables
    return found


def worker_variables(
    spec: WorkersSpec, group: WorkerGroup, worker: Worker, environ: Mapping[str, str], *, use_agent_store: bool = True
) -> dict[str, str]:
    """Every variable that torchrun's agent gives a worker. Raises ``UsageError`` if there is no device for it.

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


def devices_of(local_rank: int, environ: Mapping[str, str]) -> dict[str, str]:
    """--virtual-local-rank: the variables that show a worker its one device, out of those that are visible here.

    That device is number 0 for it. Raises ``UsageError`` if there are too few.
    """
    if environ.get(_HIP):
        gpu = _nth(_HIP, local_rank, environ)
        found = {_CUDA: gpu, _HIP: gpu}
    else:
        found = {_CUDA: _nth(_CUDA, local_rank, environ)}
    npu = environ.get(_ASCEND) or glob.glob("/dev/davinci[0-9]*")
    return {**found, _ASCEND: _nth(_ASCEND, local_rank, environ)} if npu else found


def _nth(variable: str, local_rank: int, environ: Mapping[str, str]) -> str:
    if variable not in environ:
        return str(local_rank)
    devices = environ[variable].split(",")
    if local_rank >= len(devices):
        raise UsageError(
            f"--virtual-local-rank: there is no device for local rank {local_rank}: {variable}={environ[variable]}",
            remedy=f"Name as many devices there as workers are to run on this node, or unset {variable}.",
        )
    return devices[local_rank].strip()


def preload_of(spec: WorkersSpec, environ: Mapping[str, str]) -> Preload | None:
    """What the keeper is asked to preload; None for nothing."""
    if not spec.preload:
        return None
    common = {**environ} if spec.nproc == 1 else {"OMP_NUM_THREADS": "1", **environ}
    return Preload(modules=spec.preload, command=spec.program.command(0), environment=common)


def followed(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command with which a debugger that follows the children of this process follows the worker, too.

    pydevd (debugpy, VS Code, PyCharm) rewrites what this process starts. Workers are started by the keeper, where no
    debugger is.
    """
    pydevd = sys.modules.get("_pydev_bundle.pydev_monkey")
    if pydevd is None or not hasattr(os, "original_execve"):  # it is not to follow children
        return command
    return tuple(pydevd.patch_args(list(command)))


def prepare_starts(
    spec: WorkersSpec,
    group: WorkerGroup,
    output: Output,
    use_agent_store: bool,
    additions: Sequence[Addition] = (),
) -> tuple[Start, ...]:
    """What to start for this round; by the time this returns, its log files exist, and --tee has begun.

    ``additions`` are those of ``variables_of``. Raises ``RdzvError`` if nothing can be started.
    """
    commands = {
        worker.local_rank: bound(
            followed(spec.program.command(worker.local_rank)), worker.local_rank, spec.numa_binding
        )
        for worker in group.workers
    }
    variables = variables_of(spec, group, os.environ, use_agent_store=use_agent_store, additions=additions)
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
