"""What the flags say about the workers of this node: the program that each runs, its streams, its device and the rest.

Read once, before anything is started.
"""

from __future__ import annotations

import enum
import glob
import inspect
import logging
import os
import re
import shutil
import signal
import string
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from rdzv_launcher.run.options import RunOptions
from rdzv_launcher.run.signals import read
from rdzv_plugins.errors import MissingDependency, UsageError
from rdzv_plugins.interfaces import Request

logger = logging.getLogger(__name__)


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
                f"--preload={args.preload}: {module!r} is not a valid module name",
                remedy="For example --preload=torch,torch.distributed",
            )
    if modules and program.kind is Kind.COMMAND:
        raise UsageError(
            f"--preload={args.preload} cannot be used with --no-python: the workers may not be Python programs",
            remedy="Leave one of them out.",
        )
    return modules


_CUDA = "CUDA_VISIBLE_DEVICES"
"""ROCm's build of torch uses this variable, too."""
_HIP = "HIP_VISIBLE_DEVICES"
"""If it is set, ROCm goes by this one instead."""
_ASCEND = "ASCEND_RT_VISIBLE_DEVICES"


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
            remedy=f"List a device for each worker of this node there, or unset {variable}.",
        )
    return devices[local_rank].strip()


# --numa-binding is untested on a machine with several NUMA nodes and GPUs: what is bound to what is torch's choice.


def require_numactl(mode: str) -> None:
    """Raises ``MissingDependency`` if a ``mode`` is given and there is no numactl."""
    if mode and shutil.which("numactl") is None:
        raise MissingDependency(
            f"--numa-binding={mode} starts the workers with numactl, which is not installed",
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

    theirs = logging.getLogger(binding.__name__)
    before, theirs.disabled = theirs.disabled, True  # otherwise a traceback, for what is said below
    try:
        options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
        wrap = binding._maybe_wrap_command_args_with_numa_binding
        index = "gpu_index" if "gpu_index" in inspect.signature(wrap).parameters else "device_index"  # from 2.14 on
        wrapped = wrap(command, **{index: local_rank}, numa_options=options)
    except Exception as error:
        raise UsageError(
            f"--numa-binding={mode}: torch cannot bind local rank {local_rank}: {error}",
            remedy="It needs a GPU for each worker, and the system has to know the GPU's NUMA node. Or leave it out.",
        ) from error
    finally:
        theirs.disabled = before
    return tuple(wrapped)


_BY_RANK = r"[0-9]+:[0-3](,[0-9]+:[0-3])*"


class Std(enum.IntFlag):
    """Standard streams, numbered as in torchrun's flags."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


class Streams(Struct, frozen=True):
    """The streams of all workers, or of some: a local rank that is not named has none."""

    all_ranks: Std = Std.NONE
    by_rank: Mapping[int, Std] | None = None

    def of(self, local_rank: int) -> Std:
        """The streams of one worker."""
        return self.all_ranks if self.by_rank is None else self.by_rank.get(local_rank, Std.NONE)


def parse_streams(flag: str, text: str) -> Streams:
    """Parse ``3`` (all), or ``0:1,1:2`` (rank 0 its stdout, rank 1 its stderr). Raises ``UsageError`` naming ``flag``.

    torch only accepts local ranks of one digit.
    """
    if text in {"0", "1", "2", "3"}:
        return Streams(Std(int(text)))
    if re.fullmatch(_BY_RANK, text):
        pairs = (part.split(":") for part in text.split(","))
        return Streams(by_rank={int(rank): Std(int(streams)) for rank, streams in pairs})
    raise UsageError(
        f"{flag}={text} is neither a number from 0 to 3 nor RANK:NUMBER,...",
        remedy=f"1 is stdout, 2 is stderr, 3 is both: {flag}=3 for all workers, {flag}=0:1,1:2 for some local ranks.",
    )


NO_EVENTS = "null"
"""--event-log-handler: torch's default, which drops every event."""
_SHUTDOWN = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_STUCK = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
_PREFIX = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
_RANKS = r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*"


class WorkersSpec(Struct, frozen=True):
    """How the workers of a launch are started. The same for every round. Usable from any thread."""

    program: Program
    preload: tuple[str, ...]
    """--preload: the modules that the workers' interpreter imports before it is forked for each of them."""
    nproc: int
    run_id: str
    role: str
    max_restarts: int
    redirects: Streams
    tee: Streams
    log_dir: str
    """--log-dir; empty if none was given, ``os.devnull`` for no files at all."""
    shown_ranks: frozenset[int]
    """--local-ranks-filter: the local ranks whose output is shown; empty: all."""
    stdout_filters: tuple[str, ...]
    stderr_filters: tuple[str, ...]
    """--duplicate-stdout-filters and --duplicate-stderr-filters: lines with one of these are collected in a file."""
    virtual_local_rank: bool
    signals: tuple[signal.Signals, ...]
    """--signals-to-handle, except those that were ignored at the start (nohup)."""
    shutdown_timeout_s: int
    """How long workers may take to end when told to."""
    leave_background: bool
    """--leave-background: what workers have started in sessions of its own is left alone when this node ends."""
    stuck_timeout_s: float
    """How long a worker may be in uninterruptible sleep; 0: for ever."""
    prefix_template: str
    """The text before each line of --tee; empty: role and local rank, or with --log-prefix host and rank."""
    monitor_interval_s: float
    numa_binding: str
    logs_specs: str
    event_log_handler: str
    """--numa-binding, --logs-specs (empty if not given) and --event-log-handler: torch's classes, by name."""
    log_prefix: bool
    """Everything shown of the workers is preceded by its origin."""
    fold: bool
    """Lines that several workers print alike are shown once, and of a flood no more than can be read."""
    timestamps: bool
    """--log-timestamps: everything shown of the workers is preceded by the time."""
    ranks_filter: tuple[range, ...]
    """The global ranks whose output is shown; empty: all."""

    def shows(self, local_rank: int) -> bool:
        """False if --local-ranks-filter leaves the worker's output out."""
        return not self.shown_ranks or local_rank in self.shown_ranks

    def shows_global(self, rank: int) -> bool:
        """False if --ranks-filter leaves the worker's output out."""
        return not self.ranks_filter or any(rank in each for each in self.ranks_filter)


def read_spec(args: RunOptions, request: Request) -> WorkersSpec:
    """The spec of a parsed command line, to be read before signals are taken over.

    Raises ``UsageError`` that names the flag or the variable, and ``MissingDependency``.
    """
    require_numactl(args.numa_binding or "")
    if args.virtual_local_rank:
        devices_of(request.nproc_per_node - 1, os.environ)
    program, ranks_filter = read_program(args), _ranks_filter(args.ranks_filter)
    redirects, tee = parse_streams("--redirects", args.redirects), parse_streams("--tee", args.tee)
    if args.log_prefix:  # everything that would be shown without a prefix
        nproc = request.nproc_per_node
        tee = Streams(by_rank={each: tee.of(each) | (Std.ALL & ~redirects.of(each)) for each in range(nproc)})
    timestamps = args.log_timestamps == "screen"
    _check_files(args, timestamps and not any(tee.of(each) for each in range(request.nproc_per_node)))
    return WorkersSpec(
        program=program,
        preload=read_preload(args, program),
        nproc=request.nproc_per_node,
        run_id=request.run_id,
        role=request.role,
        max_restarts=request.max_restarts
        if args.job_restarts is None or "max_restarts" in request.given
        else args.job_restarts,
        redirects=redirects,
        tee=tee,
        log_dir=args.log_dir or "",
        shown_ranks=_ranks(args.local_ranks_filter),
        stdout_filters=tuple(args.duplicate_stdout_filters or ()),
        stderr_filters=tuple(args.duplicate_stderr_filters or ()),
        virtual_local_rank=args.virtual_local_rank,
        signals=tuple(each for each in read(args.signals_to_handle) if signal.getsignal(each) is not signal.SIG_IGN),
        shutdown_timeout_s=_shutdown_timeout(args.shutdown_timeout),
        leave_background=args.leave_background,
        stuck_timeout_s=_stuck_timeout(),
        prefix_template=args.log_line_prefix_template or os.environ.get(_PREFIX, ""),
        monitor_interval_s=args.monitor_interval,
        numa_binding=args.numa_binding or "",
        logs_specs=args.logs_specs or "",
        event_log_handler=args.event_log_handler,
        log_prefix=args.log_prefix,
        fold=args.log_prefix and args.fold and not args.no_fold,
        timestamps=timestamps,
        ranks_filter=ranks_filter,
    )


def _ranks_filter(text: str) -> tuple[range, ...]:
    pairs = [part.partition("-") for part in text.split(",")] if re.fullmatch(_RANKS, text) else []
    ranks = tuple(range(int(first), int(last or first) + 1) for first, _, last in pairs)
    if text and not (ranks and all(ranks)):
        raise UsageError(
            f"--ranks-filter={text} is not a list of ranks",
            remedy="For example --ranks-filter=0 or --ranks-filter=0,8-15",
        )
    return ranks


def _check_files(args: RunOptions, stamps_nothing: bool) -> None:
    """Warn of flags about log files where there are none. Raises ``UsageError`` if that leaves nothing to be shown."""
    if args.log_prefix and args.log_dir == os.devnull and not args.logs_specs:
        raise UsageError(
            f"--log-prefix shows the log files of workers, and with --log-dir={os.devnull} there are none",
            remedy="Name a directory, or leave --log-dir out: the files go to a temporary directory then.",
        )
    if stamps_nothing and not args.logs_specs:
        logger.warning("--log-timestamps has no effect: this agent shows no stream (--tee=3, --log-prefix)")


def _ranks(text: str) -> frozenset[int]:
    try:
        return frozenset(map(int, text.split(","))) if text else frozenset()
    except ValueError:
        raise UsageError(
            f"--local-ranks-filter={text} is not a comma-separated list of numbers",
            remedy="For example --local-ranks-filter=0,1",
        ) from None


def _shutdown_timeout(given: int | None) -> int:
    name, value = ("--shutdown-timeout", given) if given is not None else (_SHUTDOWN, os.environ.get(_SHUTDOWN, "30"))
    try:
        seconds = int(value)
    except ValueError:
        seconds = -1
    if seconds < 0:
        raise UsageError(f"{name}={value} is not a number of seconds, 0 or more")
    return seconds


def _stuck_timeout() -> float:
    """Parse as torch does: anything that is not a number, or is below 0, means 0."""
    try:
        return max(0.0, float(os.environ.get(_STUCK, "") or 0))
    except ValueError:
        return 0.0
