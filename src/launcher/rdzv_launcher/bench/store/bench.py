"""``rdzv bench store``: what a request costs our store server, torch's two, and a bare epoll loop, in one run.

One process holds all clients (the native load generator), each server has a process of its own, and the servers take
turns. The figure to look at is the server's CPU time per request: load on the machine affects it least.
"""

from __future__ import annotations

import resource
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from rdzv_launcher.bench.method.progress import Progress
from rdzv_launcher.bench.method.turns import Turns, take_turns
from rdzv_launcher.bench.processes.closed import conf_of
from rdzv_launcher.bench.processes.guard import Guard
from rdzv_launcher.bench.processes.load import load_module
from rdzv_launcher.bench.processes.names import hosts_file_only
from rdzv_launcher.bench.report.output import Output
from rdzv_launcher.bench.store.cases import StoreCase, StoreSample, measure
from rdzv_launcher.bench.store.figures import as_details, as_points, caption, notes
from rdzv_launcher.bench.store.many import measure_many
from rdzv_launcher.bench.store.servers import StoreProcess, StoreTarget
from rdzv_launcher.bench.store.sessions import measure_sessions
from rdzv_launcher.bench.store.settings import StoreSettings
from rdzv_plugins.errors import UsageError
from rdzv_plugins.kvstore.native.limits import raise_file_limit

_OTHER_FILES = 100
_SLOW_S = 10.0
"""A run that takes longer is not repeated."""


def run(settings: StoreSettings, args: Namespace) -> int:
    """Measure and print; returns the exit code.

    Raises ``UsageError``, ``MissingDependency`` if the load generator was not built, and ``RdzvError`` for a wrong
    reply or a server that ends.
    """
    load_module()
    cases = settings.cases()
    _require_files(max(max(case.shares) for case in cases))
    targets = settings.compared()
    with Guard() as guard, ExitStack() as kept:
        confs = {way: conf_of(way, Path(kept.enter_context(tempfile.TemporaryDirectory()))) for way in settings.closed}
        apart = hosts_file_only(guard.directory)
        options = asdict(settings) | {
            "targets": [target.name for target in targets],
            "names_from_hosts_file": apart is not None,
        }
        with Output("store", options, as_json=args.json, out=args.out) as output:
            for case in cases:
                asked = [target for target in targets if case.takes(target)]
                if not asked:
                    continue
                turns = _measure(case, asked, settings.repeats, apart or [], output.progress, confs)
                points = as_points(case, asked, turns)
                output.case(case.name, points, details=as_details(case, turns), notes=notes(case, turns))
            output.end(caption(cases, targets, names_from_hosts=apart is not None))
    return 0


def _require_files(connections: int) -> None:
    """Raises ``UsageError`` if this process may not have this many connections."""
    raise_file_limit()
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < connections + _OTHER_FILES:
        raise UsageError(
            f"{connections} connections need {connections + _OTHER_FILES} open files; this process may have {allowed}",
            remedy="Raise the hard limit (ulimit -Hn), or ask for fewer by --connections, --storm and --hold.",
        )


def _measure(
    case: StoreCase,
    targets: Sequence[StoreTarget],
    repeats: int,
    apart: list[str],
    progress: Progress,
    confs: Mapping[str, Mapping[str, str]],
) -> Turns[StoreSample]:
    with ExitStack() as running:
        servers = _Servers(case, targets, apart, running, confs)
        return take_turns(
            case.name,
            [target.name for target in targets],
            lambda name, turn: _measure_one(case, servers.of(name, turn), f"/bench/{turn}"),
            repeats=repeats,
            progress=progress,
            warm_up=not case.fresh_servers and not case.per_process,
            once=lambda sample: sample.wall_s > _SLOW_S,
        )


def _measure_one(case: StoreCase, servers: Sequence[StoreProcess], prefix: str) -> StoreSample:
    if case.per_process:
        return measure_many(case, servers, prefix)
    return (measure_sessions if case.of_sessions else measure)(case, servers[0], prefix)


class _Servers:
    """The servers of one case, as many of each target as it has processes: the same over all turns, or new ones."""

    def __init__(
        self,
        case: StoreCase,
        targets: Sequence[StoreTarget],
        apart: list[str],
        running: ExitStack,
        confs: Mapping[str, Mapping[str, str]],
    ) -> None:
        """``running`` keeps them, and stops them with its block. ``confs``: of closed servers, by the way."""
        self._case, self._targets, self._apart, self._running, self._confs = case, targets, apart, running, confs
        self._servers: dict[str, list[StoreProcess]] = {}
        self._turn = 0

    def of(self, name: str, turn: int) -> list[StoreProcess]:
        """The running servers of a target. Raises ``RdzvError`` if one does not serve."""
        if not self._servers or (self._case.fresh_servers and turn != self._turn):
            self._running.close()
            self._servers = {
                target.name: [self._start(target) for _ in range(self._case.processes)] for target in self._targets
            }
            for server in chain(*self._servers.values()):
                server.start()
        self._turn = turn
        return self._servers[name]

    def _start(self, target: StoreTarget) -> StoreProcess:
        prefix = self._apart if target.looks_up_names and self._case.workload != "names" else []
        return self._running.enter_context(StoreProcess(target, prefix, self._confs.get(target.closed, {})))
