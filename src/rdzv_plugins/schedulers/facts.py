"""From what a scheduler says about a process that it has started to fields of a ``Request``.

Each value comes with the variable that it was read from. Every plug-in of this package hands its reader to ``hook_of``.
A flag wins over a scheduler. A launch whose flags say how many nodes there are and where they meet has described
itself, and nothing is read.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, NoReturn, TypeVar

from msgspec import Struct

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.hookspecs import hookimpl
from rdzv_plugins.interfaces import Backend, Capability, Request
from rdzv_plugins.plain_text import printable
from rdzv_plugins.system.processes import read_stat

logger = logging.getLogger(__name__)

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


REMEDY = "Give --nnodes, --node-rank and --rdzv-endpoint instead, or disable the plug-in: --rdzv-no-plugin "
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
            raise self.wrong(name, f"is not a whole number of at least {minimum}")
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
            raise self.wrong(listed.source, f"is not a valid host list: {error}") from error

    def wrong(self, name: str, why: str) -> UsageError:
        """The error for a variable that cannot be used."""
        return UsageError(f"{name}={printable(self.environ.get(name, ''), 200)} {why}", remedy=self._remedy)

    def refused(self, message: str, remedy: str = "") -> UsageError:
        """The error for variables that cannot be used together."""
        return UsageError(message, remedy=remedy or self._remedy)

    def below(self, rank: Fact[int], count: Fact[int]) -> Fact[int]:
        """``rank``, if it is less than ``count``."""
        if rank.value >= count.value:
            raise self.refused(f"{rank} contradicts {count}: ranks go from 0 to {count.value - 1}")
        return rank

    def _missing(self, name: str) -> NoReturn:
        raise self.refused(f"{name} is not set, but variables are that come with it")


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
            raise ValueError(f"more than {_MOST_HOSTS} hosts")
    return hosts


def _expand_item(item: str) -> list[str]:
    parts: list[list[str]] = []
    at, count = 0, 1
    while at < len(item):
        found = _PART.match(item, at)
        if not found:
            raise ValueError(f"{item[at:][:40]!r} is not part of a host list")
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
            raise ValueError(f"{each[:40]!r} is not a range of numbers")
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


# What follows for the request: which fields are missing, and which contradict each other.
_PLACES = 3
"""How many endpoints, and nodes for them, it takes to survive the loss of any one.

One of two is not more than half.
"""

Reader = Callable[[Variables, bool], Facts | None]
"""Reads the environment; the second argument tells whether a flag has set the number of nodes to more than one.

Returns None if this process is on its own. Raises ``UsageError`` for a variable that is not as documented.
"""


def hook_of(plugin: str, read: Reader) -> Callable[..., dict[str, Any] | None]:
    """The hook ``rdzv_resolve_request`` of the plug-in of that name."""

    @hookimpl(trylast=True)
    def rdzv_resolve_request(request: Request, backend: Backend | None) -> dict[str, Any] | None:
        """The fields that the scheduler knows and no flag has set. Raises ``UsageError``."""
        found = launchers(os.environ)
        meets_at = "" if backend is None else backend.meets_at
        if found[:1] != [plugin] or _describes_itself(request, meets_at):
            return None
        if others := found[1:]:
            logger.debug("plug-in %s reads what the innermost launcher says; ignored: %s", plugin, ", ".join(others))
        facts = read(Variables(os.environ, plugin), "max_nodes" in request.given)
        if facts is None:
            return None
        if facts.idle:
            return {"idle": facts.idle}
        capabilities = backend.capabilities if backend is not None else ()
        return _filled_in(plugin, facts, request, meets_at, capabilities) or None

    return rdzv_resolve_request


def _describes_itself(request: Request, meets_at: str) -> bool:
    """True if flags say all that makes it a job: one node, or how many and where.

    The endpoint of a service does not identify a job; there the run id does.
    """
    if "max_nodes" not in request.given:
        return False
    where = "run_id" if meets_at == "service" else "endpoint"
    return request.max_nodes == 1 or where in request.given


def _filled_in(
    plugin: str, facts: Facts, request: Request, meets_at: str, capabilities: Collection[Capability]
) -> dict[str, Any]:
    """Fields with their values."""
    answer: dict[str, Any] = {}

    def take(field: str, flag: str, fact: Fact[Any] | None) -> None:
        if fact is not None and field not in request.given:
            answer[field] = fact.value
            logger.debug("--%s=%s from %s (plug-in %s)", flag, fact.value, fact.source, plugin)

    _refuse_contradictions(facts, request)
    take("max_nodes", "nnodes", facts.nodes)
    if "max_nodes" in answer:
        answer["min_nodes"] = answer["max_nodes"]
    nodes = answer.get("max_nodes", request.max_nodes)
    if facts.run_id_lasts or meets_at != "service":
        take("run_id", "rdzv-id", facts.run_id)
    take("nproc_per_node", "nproc-per-node", facts.workers)
    if nodes > 1:
        if Capability.NODE_RANK in capabilities and not _some_are_spares(facts, nodes):
            take("node_rank", "node-rank", facts.node_rank)
            if "node_rank" in answer:
                answer["rank_moves"] = True
        take("domain", "rdzv-conf domain", facts.domain)
        if meets_at == "node" and "endpoint" not in request.given:
            least = answer.get("min_nodes", request.min_nodes)
            several = Capability.SEVERAL_ENDPOINTS in capabilities and _goes_on_without_the_first(facts, nodes, least)
            take("endpoint", "rdzv-endpoint", _endpoint(facts, answer.get("run_id", request.run_id), nodes, several))
    return answer


def _goes_on_without_the_first(facts: Facts, nodes: int, least: int) -> bool:
    """True if a job that needs ``least`` nodes can go on at another meeting place: there are enough, or will be.

    If there are not, meeting elsewhere would mean waiting for a node that never comes, where a requeue would help.
    """
    started = facts.nodes.value if facts.nodes is not None else nodes
    return min(started, nodes) >= _PLACES and (facts.replaced or least < started)


def _some_are_spares(facts: Facts, nodes: int) -> bool:
    """True if more nodes were started than the job has room for; their ranks do not decide which are spares."""
    if facts.nodes is not None:
        return facts.nodes.value > nodes
    return facts.node_rank is not None and facts.node_rank.value >= nodes


def _endpoint(facts: Facts, run_id: str, nodes: int, several: bool) -> Fact[str]:
    hosts = facts.hosts(_PLACES)
    if hosts is None:
        raise UsageError(
            f"{facts.launcher} does not report the host of the first of {nodes} nodes, so there is no endpoint",
            remedy="Give --rdzv-endpoint=HOST:PORT, the same on every node.",
        )
    port = facts.port or port_of_name(run_id)
    found = tuple(dict.fromkeys(hosts.value))  # if nodes share a host, two places there are one
    places = found if several and len(found) >= _PLACES else found[:1]
    text = ",".join(str(Endpoint(host, port.value)) for host in places)
    return Fact(text, f"{hosts.source}, the port from {port.source}")


def _refuse_contradictions(facts: Facts, request: Request) -> None:
    """Refuse a flag and a variable that cannot both be right. Raises ``UsageError``.

    If there are to be more nodes than were started here, the rest may come from elsewhere, which is logged; if fewer,
    the surplus ones are spares.
    """
    if facts.nodes is None:
        return
    if "max_nodes" not in request.given:
        if "node_rank" in request.given and (request.node_rank or 0) >= facts.nodes.value:
            raise UsageError(
                f"--node-rank={request.node_rank} contradicts {facts.nodes}: node ranks go from 0 to "
                f"{facts.nodes.value - 1}",
                remedy=f"Leave it out ({facts.launcher} sets it), or give the number of nodes with --nnodes.",
            )
    elif request.min_nodes > facts.nodes.value:
        logger.warning(
            "--nnodes asks for %d nodes, but %s started this command on %d (%s): the others must be started elsewhere",
            request.min_nodes,
            facts.launcher,
            facts.nodes.value,
            facts.nodes,
        )
