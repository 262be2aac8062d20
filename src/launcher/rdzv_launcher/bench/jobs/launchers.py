"""The launchers: rdzv-run on any installed backend, and plain torchrun on torch's own beside it.

For ``rdzv bench launch`` and ``rdzv bench faults``.
"""

from __future__ import annotations

import sys
import sysconfig
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from rdzv_launcher.bench.backends import TORCH_C10D, TORCH_STATIC, Candidate, reference_names
from rdzv_launcher.bench.method.readings import cpu_seconds
from rdzv_launcher.bench.method.turns import DidNotFinish
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.harness import Harness, free_port

_MOST_CHARACTERS = 300
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Launcher:
    """One way to launch a job."""

    name: str
    program: str
    """The launcher's command: ``rdzv-run`` or ``torchrun``."""
    backend: str
    """The name after ``--rdzv-backend``; empty for the launcher without any rendezvous flag."""
    conf: Mapping[str, str] = field(default_factory=dict)
    ranks: bool = False
    """Nodes are given their ranks."""
    elastic: bool = False
    """``--nnodes=MIN:MAX`` is respected."""
    several: bool = False
    """It takes several endpoints, and goes on at another one."""
    flags: tuple[str, ...] = ()
    """Additional flags of rdzv-run."""
    harness: Harness | None = None
    """The harness, which knows the endpoint; None for torch's own."""

    @property
    def reference(self) -> bool:
        """Whether this is torch's own launcher, with which the others are compared."""
        return self.program == "torchrun"

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for the agents, in addition to the others."""
        return self.harness.environment if self.harness is not None else _NOTHING

    @property
    def service(self) -> Sequence[int]:
        """The processes of the service that the nodes dial, if a harness has started one for all jobs."""
        found = self.harness.service if self.harness is not None else None
        return found.pids if found is not None else ()

    def service_cpu(self) -> float:
        """CPU seconds that the service has used since it was started; 0 if there is none of ours."""
        return sum(cpu_seconds(pid) for pid in self.service)


class JobFailed(DidNotFinish):
    """A job that did not get to where it should; ``words`` are its last ones."""

    def __init__(self, text: str, words: str) -> None:
        super().__init__(text)
        self.words = words


@dataclass(frozen=True)
class Meeting:
    """One job: what all of its nodes are told."""

    launcher: Launcher
    endpoint: str
    run_id: str

    def command(self, node: int, nnodes: str, workers: int, script: Sequence[object], *flags: str) -> list[str]:
        """The command line of one node's agent; its address is given, so that nobody looks up this machine's name."""
        launcher = self.launcher
        command = [str(_program(launcher.program)), f"--nproc-per-node={workers}", *launcher.flags, *flags]
        if launcher.backend:
            command += [f"--nnodes={nnodes}", f"--rdzv-backend={launcher.backend}", f"--rdzv-id={self.run_id}"]
            command += [f"--rdzv-endpoint={self.endpoint}", "--local-addr=127.0.0.1"]
        else:  # otherwise both listen on 29500, where somebody else may be
            command.append(f"--master-port={self.endpoint.rpartition(':')[2]}")
        if launcher.conf:
            command.append("--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in launcher.conf.items()))
        if launcher.ranks:
            command.append(f"--node-rank={node}")
        return [*command, *map(str, script)]


def meet(launcher: Launcher, directory: Path, endpoints: int = 1) -> Meeting:
    """A new job, which meets at this many endpoints; ``directory`` is empty, and belongs to this job alone."""
    if launcher.harness is None:
        endpoint = f"127.0.0.1:{free_port()}"
    elif endpoints == 1:
        endpoint = launcher.harness.endpoint(directory)
    else:
        endpoint = launcher.harness.endpoints(directory, endpoints)
    return Meeting(launcher, endpoint, f"bench-{uuid.uuid4().hex[:8]}")


def ours(candidates: Sequence[Candidate]) -> list[Launcher]:
    """rdzv-run on each of these backends."""
    return [
        Launcher(
            each.name,
            "rdzv-run",
            each.name,
            each.harness.conf,
            ranks=Capability.NODE_RANK in each.entry.backend.capabilities,
            elastic=Capability.ELASTIC in each.entry.backend.capabilities,
            several=Capability.SEVERAL_ENDPOINTS in each.entry.backend.capabilities,
            harness=each.harness,
        )
        for each in candidates
    ]


def references(names: str, c10d_conf: Mapping[str, str] = _NOTHING) -> list[Launcher]:
    """Plain torchrun on these of torch's own backends; ``none`` for none of them. Raises ``UsageError``."""
    launchers = {
        TORCH_STATIC: Launcher(TORCH_STATIC, "torchrun", "static", ranks=True),
        TORCH_C10D: Launcher(TORCH_C10D, "torchrun", "c10d", c10d_conf, elastic=True),
    }
    return [launchers[name] for name in reference_names(names)]


def preloading(launcher: Launcher, module: str) -> Launcher:
    """The same launcher with ``--preload=MODULE``."""
    flag = f"--preload={module}"
    return replace(launcher, name=f"{launcher.name} {flag}", flags=(*launcher.flags, flag))


def require_launchers() -> None:
    """Raises ``RdzvError`` if one of the two is not installed."""
    for program in ("rdzv-run", "torchrun"):
        if not _program(program).exists():
            raise RdzvError(f"there is no {program} beside {sys.executable}", remedy="Install torch and rdzv-plugins.")


def _program(name: str) -> Path:
    return Path(sysconfig.get_path("scripts")) / name


def last_words(text: str) -> str:
    """The last error that a launcher or a worker named, otherwise the last line."""
    said = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("bench {")]
    errors = [line for line in said if "error: " in line.lower()]
    return (errors or said or ["it has said nothing"])[-1][:_MOST_CHARACTERS]
