"""The settings of ``rdzv bench store``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rdzv_launcher.bench.method.settings import setting
from rdzv_launcher.bench.processes.closed import closed_setting
from rdzv_launcher.bench.store.cases import NAMES_LIMIT_S, SESSIONS, WORKLOADS, StoreCase
from rdzv_launcher.bench.store.servers import KINDS, StoreTarget, parse_target
from rdzv_plugins.errors import UsageError


@dataclass(frozen=True)
class StoreSettings:
    """Which servers are compared, in what, and how often."""

    connections: tuple[int, ...] = setting(
        (1000, 4000), quick=(100,), metavar="N,N", minimum=1, help="clients of the workloads (default {default})"
    )
    storm: int = setting(
        8000, quick=200, metavar="N", minimum=1, help="clients that connect at once (default {default})"
    )
    hold: int = setting(16000, quick=200, metavar="N", minimum=1, help="idle clients (default {default})")
    many: int = setting(
        98_304,
        quick=60,
        metavar="N",
        minimum=1,
        help="clients in several processes, which connect, stay and ask once (default {default})",
    )
    per_process: int = setting(
        16_384,
        quick=20,
        metavar="N",
        minimum=1,
        help="the most of these in one process, and at one server (default {default})",
    )
    sessions: int = setting(
        64, quick=4, metavar="N", minimum=1, help="sessions of nodes, which ours alone has (default {default})"
    )
    repeats: int = setting(5, quick=1, metavar="N", minimum=1, help="turns of all servers (default {default})")
    rounds: int = setting(
        10, quick=2, metavar="N", minimum=1, help="how often a client repeats a workload (default {default})"
    )
    gets: int = setting(8, metavar="K", minimum=1, help="mesh: peers whose blob a client gets (default {default})")
    workloads: tuple[str, ...] = setting(
        tuple(WORKLOADS), metavar="A,B", choices=tuple(WORKLOADS), help="some of {default} (default all)"
    )
    targets: tuple[str, ...] = setting(
        tuple(KINDS), metavar="A,B", help="some of {default}, ours:THREADS (default {default})"
    )
    threads: tuple[int, ...] = setting(
        (), metavar="N,N", minimum=1, help="also ours with so many threads; the same as targets ours:N"
    )
    closed: tuple[str, ...] = closed_setting("the sessions of ours")
    limit_s: float = setting(
        60.0, metavar="SECONDS", minimum=0, help="of one run; beyond is a result too (default {default})"
    )
    names: int = setting(200, quick=20)
    """Clients of the storm in which names are looked up."""

    def __post_init__(self) -> None:
        if not self.limit_s:
            raise UsageError("--limit=0: a number of seconds above 0 is needed")
        self.compared()

    def compared(self) -> list[StoreTarget]:
        """The servers that are compared: those of ``threads`` come right after our server with its default."""
        ours = ("ours", *(f"ours:{number}" for number in self.threads)) if self.threads else ()
        found = [parse_target(name) for name in dict.fromkeys((*ours, *self.targets))]
        plain = [each for each in found if each.kind == "ours"]
        if self.closed and not (plain and {*SESSIONS} & {*self.workloads}):
            raise UsageError(
                f"--closed is about {' and '.join(SESSIONS)} of ours, which are not measured",
                remedy="Add them to --workloads, and ours to --targets.",
            )
        return [*found, *(replace(each, closed=way) for each in plain for way in self.closed)]

    def cases(self) -> list[StoreCase]:
        """The cases in the order in which they are measured: small ones of a workload first."""
        counts = {"storm": (self.storm,), "hold": (self.hold,), "many": (self.many,), "names": (self.names,)}
        counts |= dict.fromkeys(SESSIONS, (self.sessions,))
        return [
            StoreCase(
                workload,
                count,
                rounds=self.rounds,
                gets=self.gets,
                limit_s=min(self.limit_s, NAMES_LIMIT_S) if workload == "names" else self.limit_s,
                per_process=self.per_process if workload == "many" else 0,
            )
            for workload in self.workloads
            for count in counts.get(workload, self.connections)
        ]
