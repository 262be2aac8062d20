"""The program that each worker runs, as the command that starts it."""

from __future__ import annotations

import enum
import inspect
import logging
import os
import re
import shutil
import string
import sys
from pathlib import Path

from msgspec import Struct

from rdzv_launcher.run.options import RunOptions
from rdzv_plugins.errors import MissingDependency, UsageError

RUNNER = str(Path(__file__).with_name("run_path.py"))
"""The file with which a worker of --run-path is started."""


class Kind(enum.Enum):
    """How the program is run."""

    SCRIPT = enum.auto()
    """A file, run by Python."""
    MODULE = enum.auto()
    """A module, run by Python: -m, --module."""
    COMMAND = enum.auto()
    """Any command, run as it is: --no-python."""
    PATH = enum.auto()
    """A script, run by a function that records its exception: --run-path."""


class Program(Struct, frozen=True):
    """The program, with its arguments as the user wrote them. ``python`` is the interpreter."""

    kind: Kind
    name: str
    arguments: tuple[str, ...] = ()
    python: str = ""

    def command(self, local_rank: int) -> tuple[str, ...]:
        """The command of one worker: in name and arguments ``${local_rank}`` stands for its rank, ``$$`` for ``$``.

        torchrun does the same, but not in the name of a command.
        """
        rest = [self.name, *self.arguments]
        for_rank = [string.Template(part).safe_substitute(local_rank=local_rank) for part in rest]
        if self.kind is Kind.COMMAND:
            # every worker leads a session already: there setsid forks, and its end would count as that of the program
            if os.path.basename(self.name) == "setsid" and len(rest) > 1 and not rest[1].startswith("-"):
                return tuple(for_rank[1:])
            return (self.name, *for_rank[1:])
        how = {Kind.SCRIPT: (), Kind.MODULE: ("-m",), Kind.PATH: (RUNNER,)}[self.kind]
        return (self.python, "-u", *how, *for_rank)


def read_program(args: RunOptions) -> Program:
    """The program of a parsed command line; --run-path wins over the others, as in torchrun."""
    python = os.environ.get("PYTHON_EXEC", sys.executable)
    if args.run_path:
        kind, python = Kind.PATH, sys.executable  # like a process that torch forks or spawns
    elif args.no_python:
        kind = Kind.COMMAND
    else:
        kind = Kind.MODULE if args.module else Kind.SCRIPT
    return Program(kind, args.training_script, tuple(args.training_script_args), python)


def read_preload(args: RunOptions, program: Program) -> tuple[str, ...]:
    """--preload: the modules that are imported before workers are forked; empty for none. Raises ``UsageError``."""
    modules = tuple(filter(None, (part.strip() for part in re.split("[,:]", args.preload))))
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise UsageError(
                f"--preload={args.preload}: {module!r} is no name of a module",
                remedy="For example --preload=torch,torch.distributed",
            )
    if modules and program.kind is Kind.COMMAND:
        raise UsageError(
            f"--preload={args.preload}: with --no-python the workers are no Python programs of which that is known",
            remedy="Leave one of them out.",
        )
    return modules


# --numa-binding is untested on a machine with several NUMA nodes and GPUs: what is bound to what is torch's choice.


def require_numactl(mode: str) -> None:
    """Raises ``MissingDependency`` if a ``mode`` is given and there is no numactl."""
    if mode and shutil.which("numactl") is None:
        raise MissingDependency(
            f"--numa-binding={mode} starts the workers with numactl, and there is no such program",
            remedy="Install it (on Debian and Ubuntu: apt-get install numactl), or leave out --numa-binding.",
        )


def bound(command: tuple[str, ...], local_rank: int, mode: str) -> tuple[str, ...]:
    """``command`` bound to the processors next to the worker's GPU; unchanged without a ``mode``.

    Raises ``MissingDependency`` without numactl, and ``UsageError`` if torch finds nothing to bind to.
    """
    if not mode:
        return command
    require_numactl(mode)
    from torch.numa import binding

    logger = logging.getLogger(binding.__name__)
    before, logger.disabled = logger.disabled, True  # otherwise a traceback, for what is said below
    try:
        options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
        wrap = binding._maybe_wrap_command_args_with_numa_binding
        index = "gpu_index" if "gpu_index" in inspect.signature(wrap).parameters else "device_index"  # from 2.14 on
        wrapped = wrap(command, **{index: local_rank}, numa_options=options)
    except Exception as error:
        raise UsageError(
            f"--numa-binding={mode}: torch cannot bind local rank {local_rank}: {error}",
            remedy="It needs a GPU for each worker, and what the system says of its place. Or leave it out.",
        ) from error
    finally:
        logger.disabled = before
    return tuple(wrapped)
