"""What a scheduler says about a process that it has started, each value with the variable that it comes from."""

from __future__ import annotations

import itertools
import os
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Generic, NoReturn, TypeVar

from msgspec import Struct

from rdzv_plugins.errors import UsageError
from rdzv_plugins.linux.processes import read_stat
from rdzv_plugins.plain_text import printable

T = TypeVar("T")

Hosts = Callable[[int], "Fact[tuple[str, ...]] | None"]
"""Returns the hosts of node ranks 0, 1 and so on, at most that many: all, or only the first if no more are known.

Returns None if not even that is known. Called only when an endpoint is needed. May raise ``UsageError``.
"""

FIRST_PORT, PORTS = 20000, 10000
"""Derived ports are 20000 to 29999: below the range from which Linux takes ports for outgoing connections."""


class Fact(Struct, Generic[T], frozen=True):
    """One value that a scheduler has set, and where it was found."""

    value: T
    source: str
    """The variable or other source that it was read from, as named in messages."""

    def __str__(self) -> str:
        return f"{self.source}={self.value}"


class Facts(Struct, frozen=True):
    """Everything that one scheduler says; None where it says nothing."""

    launcher: str
    """The command that has started this process, for example ``srun``."""
    nodes: Fact[int] | None = None
    """On how many nodes this command was started."""
    node_rank: Fact[int] | None = None
    hosts: Hosts = lambda count: None
    port: Fact[int] | None = None
    run_id: Fact[str] | None = None
    run_id_lasts: bool = False
    """No later job will have this run id, so it may be used where the keys of old jobs are found."""
    workers: Fact[int] | None = None
    """The number of workers of this node."""
    replaced: bool = False
    """A lost node comes back under the same name, so a job with only as many nodes as it needs can go on without it."""
    domain: Fact[str] | None = None
    """Its place in the network, by a name that it shares with nodes near it."""
    idle: str = ""
    """Why this process is not the agent of its node, in words; empty if it is."""


def derived_port(number: int) -> int:
    """The port of a job with that number. Consecutive jobs, which may share a node, get different ones."""
    return FIRST_PORT + number % PORTS


def port_of_name(name: str) -> Fact[int]:
    """The port of a job that has no number, derived from its run id."""
    return Fact(derived_port(zlib.crc32(name.encode())), "the run id")


REMEDY = (
    "Give the flags instead: --nnodes, --node-rank and --rdzv-endpoint; or switch the plug-in off: --rdzv-no-plugin "
)
_MOST_DIGITS = 18
"""All numbers of schedulers have 64 bits at most."""


class Variables:
    """The environment of this process, as one plug-in reads it. An empty variable counts as not set."""

    def __init__(self, environ: Mapping[str, str], plugin: str) -> None:
        self.environ = environ
        self._remedy = f"{REMEDY}{plugin}."

    def text(self, name: str) -> Fact[str] | None:
        """A variable as it is; None if it is not set."""
        value = self.environ.get(name, "")
        return Fact(value, name) if value else None

    def number(self, name: str, minimum: int = 0) -> Fact[int] | None:
        """A whole number; None if the variable is not set."""
        value = self.environ.get(name, "")
        if not value:
            return None
        if not (value.isascii() and value.isdecimal()) or len(value) > _MOST_DIGITS or int(value) < minimum:
            raise self.wrong(name, f"is not a number of {minimum} or more")
        return Fact(int(value), name)

    def needed_text(self, name: str) -> Fact[str]:
        """Like ``text``, for a variable that is always set together with those that were found."""
        return self.text(name) or self._missing(name)

    def needed_number(self, name: str, minimum: int = 0) -> Fact[int]:
        """Like ``number``, for a variable that is always set together with those that were found."""
        return self.number(name, minimum) or self._missing(name)

    def expanded(self, listed: Fact[str]) -> list[str]:
        """The hosts of a variable that is a host list of Slurm."""
        try:
            return expand(listed.value)
        except ValueError as error:
            raise self.wrong(listed.source, f"cannot be read: {error}") from error

    def wrong(self, name: str, why: str) -> UsageError:
        """The error for a variable that cannot be used."""
        return UsageError(f"{name}={printable(self.environ.get(name, ''), 200)} {why}", remedy=self._remedy)

    def refused(self, message: str, remedy: str = "") -> UsageError:
        """The error for variables that cannot be used together."""
        return UsageError(message, remedy=remedy or self._remedy)

    def below(self, rank: Fact[int], count: Fact[int]) -> Fact[int]:
        """``rank``, if it is less than ``count``."""
        if rank.value >= count.value:
            raise self.refused(f"{rank} contradicts {count}: they count from 0 to {count.value - 1}")
        return rank

    def _missing(self, name: str) -> NoReturn:
        raise self.refused(f"{name} is not set, though variables that are set with it are there")


def has_terminal() -> bool:
    """True if this process has a controlling terminal, as in an interactive shell.

    False if that cannot be determined.
    """
    stat = read_stat(os.getpid())
    return stat is not None and stat.has_terminal


def is_of_the_container() -> bool:
    """True if this process comes from the command of its container, not from ``kubectl exec``.

    Processes of ``exec`` have an ancestor, other than process 1, whose parent is outside the container. If the
    containers of a pod share their processes, it cannot be determined: False.
    """
    pid = os.getpid()
    while pid > 1:
        stat = read_stat(pid)
        pid = 0 if stat is None else stat.parent
    return pid == 1


Environ = Mapping[str, str]

# Nesting. With mpirun in a Slurm job, or Slurm within Kubernetes, a process inherits the variables of all of
# them. Those of an outer launcher describe what has started the inner one, not this process: they are not used even if
# the plug-in of the inner one is switched off.
_RESERVED_STEPS = 0xFFFFFFF0
"""Numbers from here on are Slurm's own: the batch script, the shell of salloc (``use_interactive_step``)."""
_WITHIN = "TORCHELASTIC_RUN_ID"
"""Set in a worker of torchrun or rdzv-run: what that launches is its own matter."""


def _openmpi(environ: Environ) -> bool:
    """Whether it is mpirun's. srun and flux with their PMIx plug-ins set PMIX_NAMESPACE, too, in their own form."""
    return "OMPI_COMM_WORLD_RANK" in environ or environ.get("PMIX_NAMESPACE", "").startswith(("prterun-", "prte-"))


def _slurm(environ: Environ) -> bool:
    """Whether it is srun's, and not the shell of an allocation: only srun's tasks are in a numbered step."""
    step = environ.get("SLURM_STEP_ID", "")
    return (
        bool(step)
        and "SLURM_PROCID" in environ
        and not (step.isdecimal() and len(step) < 12 and int(step) >= _RESERVED_STEPS)
    )


def _pbs(environ: Environ) -> bool:
    """Whether it is a task of PBS, not the job's script or the shell of ``qsub -I``: those are task 1 of node 0."""
    if "PBS_JOBID" not in environ or "PBS_NODENUM" not in environ:
        return False
    return (environ["PBS_NODENUM"], environ.get("PBS_TASKNUM", "1")) != ("0", "1")


def _pytorchjob(environ: Environ) -> bool:
    """Whether it is a PyTorchJob's pod. People set such variables, too; a pod of a PyTorchJob also has its names."""
    if not all(each in environ for each in ("KUBERNETES_SERVICE_HOST", "MASTER_PORT", "WORLD_SIZE", "RANK")):
        return False
    named = re.fullmatch(r"(.+)-(?:master|worker)-[0-9]+", environ.get("HOSTNAME", ""))
    return named is not None and environ.get("MASTER_ADDR") in (f"{named[1]}-master-0", "localhost")


def _has(*names: str) -> Callable[[Environ], bool]:
    return lambda environ: all(name in environ for name in names)


_MARKS: tuple[tuple[str, Callable[[Environ], bool]], ...] = (
    ("openmpi", _openmpi),
    ("flux", _has("FLUX_TASK_RANK")),
    ("slurm", _slurm),
    ("pbs", _pbs),
    ("sagemaker", _has("SM_HOSTS", "SM_CURRENT_HOST")),
    ("torchx", _has("TORCHX_JOB_ID")),
    ("kubeflow", _pytorchjob),
    ("indexed-job", _has("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX")),
)
"""Maps each plug-in to what only processes started by its launcher have; inner launchers precede those around them."""


def launchers(environ: Environ) -> list[str]:
    """The plug-ins of all launchers whose variables are present, the innermost first."""
    return [] if _WITHIN in environ else [name for name, started in _MARKS if started(environ)]


# Host lists of Slurm: ``rack[1-2]node[001-003,7],login`` stands for eight nodes and one.
_MOST_HOSTS = 1_000_000
_PART = re.compile(r"(?P<text>[\w.-]+)|\[(?P<ranges>[^\[\]]*)\]")
_RANGE = r"([0-9]+)(?:-([0-9]+))?"


def expand(text: str) -> list[str]:
    """The names in a host list of Slurm, in order. Raises ``ValueError``, which says what is wrong.

    As ``scontrol show hostnames`` does it, without starting that: it may not be there in a container. Source:
    https://slurm.schedmd.com/scontrol.html, *show hostnames*; the form: https://slurm.schedmd.com/slurm.conf.html,
    *NodeName*.
    """
    hosts: list[str] = []
    for item in re.split(r",(?![^\[]*\])", text):  # at the commas outside brackets
        hosts += _expand_item(item)
        if len(hosts) > _MOST_HOSTS:
            raise ValueError(f"these are more than {_MOST_HOSTS} hosts")
    return hosts


def _expand_item(item: str) -> list[str]:
    parts: list[list[str]] = []
    at, count = 0, 1
    while at < len(item):
        found = _PART.match(item, at)
        if not found:
            raise ValueError(f"{item[at:][:40]!r} is no part of a host list")
        parts.append([found["text"]] if found["text"] else _numbers(found["ranges"]))
        count *= len(parts[-1])
        if count > _MOST_HOSTS:
            raise ValueError(f"{item[:40]!r} stands for more than {_MOST_HOSTS} hosts")
        at = found.end()
    if not parts:
        raise ValueError("a name is empty")
    return ["".join(each) for each in itertools.product(*parts)]


def _numbers(ranges: str) -> list[str]:
    numbers: list[str] = []
    for each in ranges.split(","):
        found = re.fullmatch(_RANGE, each)
        if not found:
            raise ValueError(f"{each[:40]!r} is no range of numbers")
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first):
            raise ValueError(f"the range {each[:40]} ends before it begins")
        if int(last) - int(first) > _MOST_HOSTS:
            raise ValueError(f"the range {each[:40]} stands for more than {_MOST_HOSTS} hosts")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers


# How long a scheduler waits between its signal and SIGKILL, as far as it tells a process. Kubernetes does not tell a
# pod: what counts is ``terminationGracePeriodSeconds``, and a manifest that sets this variable to the same number
# passes it on. Slurm ends a job by SIGTERM and, after KillWait, SIGKILL: that is in slurm.conf
# (https://slurm.schedmd.com/slurm.conf.html), which most nodes have as a file. slurmctld is not asked: thousands of
# tasks would do so at once. The GraceTime of a partition and the time of ``--signal`` are not to be found anywhere.
# When the job's time is up is in a variable, but not with Slurm 22.05 (https://slurm.schedmd.com/sbatch.html).
GRACE = "TERMINATION_GRACE_PERIOD_SECONDS"
_END = "SLURM_JOB_END_TIME"
_DIGITS = 12
_SLURM_CONF = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
"""Where it is without SLURM_CONF: in Debian's and other packages, and where slurmd keeps one that it has no file of."""
_KILL_WAIT_S = 30
"""Slurm's default."""


def told_grace(environ: Mapping[str, str], *, by_sigterm: bool = True) -> Fact[int] | None:
    """The grace in seconds; None if nobody tells or it is not a number.

    ``by_sigterm``: SIGTERM is what it begins with.
    """
    return _number(environ, GRACE) or (_kill_wait(environ) if by_sigterm and "SLURM_STEP_ID" in environ else None)


def time_until_end(environ: Mapping[str, str], now: float) -> Fact[float] | None:
    """Seconds from ``now`` (Unix time) until the job's time is up; None if nobody tells, or it has passed."""
    end = _number(environ, _END)
    return Fact(end.value - now, end.source) if end is not None and end.value > now else None


def _kill_wait(environ: Mapping[str, str]) -> Fact[int] | None:
    """KillWait of this node's slurm.conf."""
    for path in (environ["SLURM_CONF"],) if environ.get("SLURM_CONF") else _SLURM_CONF:
        try:
            with open(path, errors="replace") as lines:
                text = lines.read()
        except OSError:
            continue
        found = re.search(rf"^\s*KillWait\s*=\s*([0-9]{{1,{_DIGITS}}})\b", text, re.MULTILINE | re.IGNORECASE)
        return Fact(int(found[1]) if found else _KILL_WAIT_S, f"KillWait in {path}")
    return None


def _number(environ: Mapping[str, str], name: str) -> Fact[int] | None:
    value = environ.get(name, "")
    good = value.isascii() and value.isdecimal() and len(value) <= _DIGITS
    return Fact(int(value), name) if good else None
