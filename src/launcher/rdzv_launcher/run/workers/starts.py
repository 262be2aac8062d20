"""From flags and ranks to what is started: one ``Start`` for each worker of a round."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from rdzv_launcher.run.keeper.messages import Preload, Start
from rdzv_launcher.run.workers.environment import Addition, variables_of
from rdzv_launcher.run.workers.numa import bound
from rdzv_launcher.run.workers.output.output import Output
from rdzv_launcher.run.workers.spec import WorkersSpec
from rdzv_launcher.run.workers.worker_group import WorkerGroup


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
            stdout=destinations.stdouts[local_rank],
            stderr=destinations.stderrs[local_rank],
        )
        for local_rank, command in commands.items()
    )
