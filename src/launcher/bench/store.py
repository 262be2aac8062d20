"""``rdzv bench store``: what a request costs our store server, torch's two, and a bare epoll loop, in one run.

One process holds all clients (the native load generator), each server has a process of its own, and the
servers take turns. The figure to look at is the server's CPU time per request: load on the machine
spoils it least.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from launcher.bench.measure import manifest
from launcher.bench.store_cases import NAMES_LIMIT_S, Case, DidNotFinish, Sample, load_module, measure
from launcher.bench.store_names import hosts_file_only
from launcher.bench.store_report import as_data, as_text, caption
from launcher.bench.store_targets import Server, Target
from rdzv_plugins.errors import UsageError
from rdzv_plugins.kvstore.limits import raise_file_limit

_OTHER_FILES = 100
_SLOW_S = 10.0
"""A run that takes longer is not repeated."""


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    workloads: tuple[str, ...]
    targets: tuple[Target, ...]
    connections: tuple[int, ...]
    """Of the workloads between a storm and a hold."""
    storm: int
    hold: int
    names: int
    repeats: int
    rounds: int
    gets: int
    limit_s: float

    def cases(self) -> list[Case]:
        """In the order in which they are measured: small ones of a workload first."""
        counts = {"storm": (self.storm,), "hold": (self.hold,), "names": (self.names,)}
        return [
            Case(
                workload,
                count,
                rounds=self.rounds,
                gets=self.gets,
                limit_s=min(self.limit_s, NAMES_LIMIT_S) if workload == "names" else self.limit_s,
            )
            for workload in self.workloads
            for count in counts.get(workload, self.connections)
        ]


@dataclass
class Result:
    """The samples of a case, of each target in the order of its runs."""

    case: Case
    samples: dict[str, list[Sample]]
    unfinished: dict[str, str] = field(default_factory=dict)
    """Why a target was not measured further."""


def run(settings: Settings, *, as_json: bool) -> int:
    """Measure and print; returns the exit code.

    Raises ``UsageError``, ``MissingDependency`` where the load generator was not built, and ``RdzvError`` for a wrong
    reply or a server that ends.
    """
    load_module()
    cases = settings.cases()
    _require_files(max(case.connections for case in cases))
    about = manifest() | {"somaxconn": int(Path("/proc/sys/net/core/somaxconn").read_text())}
    if not as_json:
        print(", ".join(f"{name} {value}" for name, value in about.items()), end="\n\n", flush=True)
    measured = []
    with tempfile.TemporaryDirectory(prefix="rdzv-bench-") as directory:
        apart = hosts_file_only(Path(directory))
        for case in cases:
            print(f"measuring: {case.title} ...", file=sys.stderr, flush=True)
            measured.append(as_data(_measure(case, settings, apart or [])))
            if not as_json:  # at once: the whole takes minutes
                print(as_text(measured[-1]), flush=True)
    if as_json:
        names = "hosts file only" if apart is not None else "as the system has it"
        data = {"manifest": about, "settings": _as_data(settings), "reverse_dns": names, "cases": measured}
        print(json.dumps(data, indent=2), flush=True)
    else:
        print(caption(settings.targets, names_from_hosts=apart is not None), flush=True)
    return 0


def _as_data(settings: Settings) -> dict[str, object]:
    return asdict(settings) | {"targets": [target.name for target in settings.targets]}


def _require_files(connections: int) -> None:
    """Raises ``UsageError`` where this process may not have so many connections."""
    raise_file_limit()
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < connections + _OTHER_FILES:
        raise UsageError(
            f"{connections} connections need {connections + _OTHER_FILES} open files; this process may have {allowed}",
            remedy="Raise the hard limit (ulimit -Hn), or ask for fewer by --connections, --storm and --hold.",
        )


def _measure(case: Case, settings: Settings, apart: list[str]) -> Result:
    """One case: the targets in turns, each time another one first."""
    result = Result(case, {target.name: [] for target in settings.targets})
    servers: dict[str, Server] = {}
    with ExitStack() as running:
        for repeat in range(settings.repeats):
            if case.fresh_servers or not servers:
                running.close()
                servers = {}
                for target in settings.targets:
                    prefix = apart if target.looks_up_names and case.workload != "names" else []
                    servers[target.name] = running.enter_context(Server(target, prefix))
                for server in servers.values():
                    server.wait_ready()
            for target in _rotated(settings.targets, repeat):
                samples = result.samples[target.name]
                if target.name in result.unfinished or (samples and samples[-1].wall_s > _SLOW_S):
                    continue
                try:
                    samples.append(measure(case, servers[target.name], f"/bench/{repeat}"))
                except DidNotFinish as error:
                    result.unfinished[target.name] = str(error)
    return result


def _rotated(targets: Sequence[Target], by: int) -> list[Target]:
    by %= len(targets)
    return [*targets[by:], *targets[:by]]
