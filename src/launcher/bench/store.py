"""``rdzv bench store``: what a request costs our store server, torch's two, and a bare epoll loop, in one run.

One process holds all clients (the native load generator), each server has a process of its own, and the
servers take turns. The figure to look at is the server's CPU time per request: load on the machine
spoils it least.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from launcher.bench.launch_guard import Guard
from launcher.bench.output import Output
from launcher.bench.progress import Progress
from launcher.bench.store_cases import NAMES_LIMIT_S, Case, Sample, load_module, measure
from launcher.bench.store_names import hosts_file_only
from launcher.bench.store_report import as_details, as_points, caption, notes
from launcher.bench.store_targets import Server, Target
from launcher.bench.turns import Turns, take_turns
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


def run(settings: Settings, *, as_json: bool, out: str | None) -> int:
    """Measure and print; returns the exit code.

    Raises ``UsageError``, ``MissingDependency`` where the load generator was not built, and ``RdzvError`` for a wrong
    reply or a server that ends.
    """
    load_module()
    cases = settings.cases()
    _require_files(max(case.connections for case in cases))
    with Guard() as guard:
        apart = hosts_file_only(guard.directory)
        options = asdict(settings) | {
            "targets": [target.name for target in settings.targets],
            "names_from_hosts_file": apart is not None,
        }
        with Output("store", options, as_json=as_json, out=out) as output:
            for case in cases:
                turns = _measure(case, settings, apart or [], output.progress)
                points = as_points(case, settings.targets, turns)
                output.case(case.name, points, details=as_details(case, turns), notes=notes(case, turns))
            output.end(caption(cases, settings.targets, names_from_hosts=apart is not None))
    return 0


def _require_files(connections: int) -> None:
    """Raises ``UsageError`` where this process may not have so many connections."""
    raise_file_limit()
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < connections + _OTHER_FILES:
        raise UsageError(
            f"{connections} connections need {connections + _OTHER_FILES} open files; this process may have {allowed}",
            remedy="Raise the hard limit (ulimit -Hn), or ask for fewer by --connections, --storm and --hold.",
        )


def _measure(case: Case, settings: Settings, apart: list[str], progress: Progress) -> Turns[Sample]:
    with ExitStack() as running:
        servers = _Servers(case, settings.targets, apart, running)
        return take_turns(
            case.name,
            [target.name for target in settings.targets],
            lambda name, turn: measure(case, servers.of(name, turn), f"/bench/{turn}"),
            repeats=settings.repeats,
            progress=progress,
            warm_up=not case.fresh_servers,
            once=lambda sample: sample.wall_s > _SLOW_S,
        )


class _Servers:
    """Those of one case: the same over all turns, or new ones in each."""

    def __init__(self, case: Case, targets: Sequence[Target], apart: list[str], running: ExitStack) -> None:
        """``running`` keeps them, and stops them with its block."""
        self._case, self._targets, self._apart, self._running = case, targets, apart, running
        self._servers: dict[str, Server] = {}
        self._turn = 0

    def of(self, name: str, turn: int) -> Server:
        """The server of a target, which serves. Raises ``RdzvError`` where it does not."""
        if not self._servers or (self._case.fresh_servers and turn != self._turn):
            self._running.close()
            self._servers = {target.name: self._start(target) for target in self._targets}
            for server in self._servers.values():
                server.wait_ready()
        self._turn = turn
        return self._servers[name]

    def _start(self, target: Target) -> Server:
        prefix = self._apart if target.looks_up_names and self._case.workload != "names" else []
        return self._running.enter_context(Server(target, prefix))
