"""``rdzv bench store``: what a request costs our store server, torch's two, and a bare epoll loop, in one run.

One process holds all clients (the native load generator), each server has a process of its own, and the servers take
turns. The figure to look at is the server's CPU time per request: load on the machine affects it least. The workloads
``init`` and ``worker`` are about the ways to the store: see ``start_of_job`` and ``transport``.
"""

from __future__ import annotations

import resource
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from rdzv_launcher.bench import servers, start_of_job, transport
from rdzv_launcher.bench.children import Child, Guard, names_remark
from rdzv_launcher.bench.points import Point, Progress, Turns, take_turns
from rdzv_launcher.bench.readings import forget_peak, listen_overflows, peak_memory, resident_memory, settled
from rdzv_launcher.bench.results import Output, asked
from rdzv_plugins.errors import UsageError
from rdzv_plugins.kvstore.native.limits import raise_file_limit

if TYPE_CHECKING:
    from rdzv_launcher.bench._load import Figures, Load

WORKLOADS = {
    "storm": "all connect at once, until each has the answer to its PING",
    "barrier": "each adds 1, the last sets the key that all others wait for",
    "mesh": "as gloo: each sets its blob, then for each of some peers: wait, wait, get",
    "one_key": "as NCCL: all wait for a key of 128 bytes and get it, one sets it",
    "multi_get": "each waits for 64 keys of 16 bytes, then gets them in one request",
    "hold": "connect, then stay idle",
    "init": "the start of a job on gloo: every rank at the root, or through the proxy of its node",
    "worker": "what workers with torch's client ask of their node's proxy, by loopback and by a Unix socket",
}
KINDS = {
    "ours": "our server, with its default number of threads; ours:N with N",
    "libuv": "torch's TCPStore server",
    "legacy": "torch's older server (use_libuv=False)",
    "echo": "a bare epoll loop: one recv and one send for each message of the same size, and nothing else",
}
_WINDOW = 256
"""The most connections that are opened at a time."""
_IDLE_S = 1.0
_OTHER_FILES = 100
_SLOW_S = 10.0
"""A run that takes longer is not repeated."""
_SETTLE_LIMIT_S = 20.0
_CAPTION = """\
Medians (smallest .. largest) over the runs, after one that does not count; a run of more than 10 s is not repeated.
Ratios: of the two runs of each turn, the median; none where the runs of one server differ by more than the two servers.
  wall     of the phase after connecting; in the storm and in hold, of connecting itself
  CPU      of the server's process, all its threads, user and system (schedstat), for each request that was sent.
           It holds what the kernel does to bring a reply to a client on the same machine
  p50, p99 round trips, without those waits that other clients end; in the storm from connect() to the PING's answer
  memory   in hold: how far the largest resident memory of the server's process is above what it was before the clients
           came; of servers that are new in each run"""


def run(args: Namespace) -> int:
    """Measure and print; returns the exit code.

    Raises ``UsageError``, ``MissingDependency`` if the load generator was not built, and ``RdzvError`` for a wrong
    reply or a server that ends.
    """
    servers.load_module()
    cases, targets = cases_of(args), targets_of(args)
    raise_file_limit()
    _require_files(max((case.connections for case in cases), default=0))
    with Guard(), Output(args, asked(args)) as output:
        for case in cases:
            turns = _measure(case, targets, args.repeats, output.progress)
            runs = {name: [asdict(sample) for sample in samples] for name, samples in turns.samples.items()}
            output.case(case.name, points_of(case, targets, turns), details={"runs": runs}, notes=notes(case, turns))
        if "init" in args.workloads:
            start_of_job.measure(args, output)
        if "worker" in args.workloads:
            transport.measure(args, output)
        output.end(_caption(args, targets))
    return 0


def _require_files(connections: int) -> None:
    """Raises ``UsageError`` if this process may not have this many connections."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < connections + _OTHER_FILES:
        raise UsageError(
            f"{connections} connections need {connections + _OTHER_FILES} open files; this process may have {allowed}",
            remedy="Raise the hard limit (ulimit -Hn), or ask for fewer by --connections, --storm and --hold.",
        )


# what is compared, and in what


def targets_of(args: Namespace) -> list[str]:
    """The servers that are compared. Raises ``UsageError``."""
    for text in args.targets:
        kind, colon, threads = text.partition(":")
        if kind not in KINDS or (colon and (kind != "ours" or not threads.isdecimal() or int(threads) < 1)):
            raise UsageError(f"--targets: '{text}' is none of {', '.join(KINDS)}, ours:N")
    return [*args.targets]


@dataclass(frozen=True)
class StoreCase:
    """A workload with a number of connections."""

    workload: str
    connections: int
    rounds: int
    gets: int
    limit_s: float

    @property
    def name(self) -> str:
        """The case in a few words."""
        return f"{self.workload}, {self.connections} clients"


def cases_of(args: Namespace) -> list[StoreCase]:
    """The cases in the order in which they are measured: small ones of a workload first."""
    counts = {"storm": (args.storm,), "hold": (args.hold,)}
    return [
        StoreCase(workload, count, args.rounds, args.gets, args.limit)
        for workload in args.workloads
        if workload not in ("init", "worker")
        for count in counts.get(workload, args.connections)
    ]


class StoreProcess(Child):
    """A running server of one of the ``KINDS``."""

    def __init__(self, target: str) -> None:
        """Returns at once, see ``start``."""
        self.target = target
        what = f"the server '{target}'"
        kind, _, threads = target.partition(":")
        if kind == "ours":
            super().__init__(what, servers.store_server, int(threads or 0))
        elif kind == "echo":
            super().__init__(what, servers.echo_server)
        else:
            # otherwise torch's messages about every reset connection would count as its CPU time
            quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
            super().__init__(what, servers.torch_server, kind == "libuv", environment=quiet)

    def start(self) -> None:
        """Wait until it serves at ``port``. Raises ``RdzvError`` with its last words if it does not."""
        self.port: int = self.answer()


# one run


@dataclass
class StoreSample:
    """The figures of one run against one server."""

    wall_s: float
    requests: int
    cpu_us: float
    """CPU time of the server for each request."""
    p50_us: float
    p99_us: float
    grown_mib: float = 0.0
    """Peak memory beyond what was resident before the clients came; what a server needed to start is not included."""
    listen_overflows: int = 0
    failures: dict[str, int] = field(default_factory=dict)


def _measure(case: StoreCase, targets: Sequence[str], repeats: int, progress: Progress) -> Turns[StoreSample]:
    """Turns of all servers of one case: the same over all turns, or new ones where they must have held nothing yet."""
    fresh, of_turn = case.workload == "hold", -1
    at: dict[str, StoreProcess] = {}
    with ExitStack() as running:

        def once(name: str, turn: int) -> StoreSample:
            nonlocal of_turn
            if not at or (fresh and turn != of_turn):
                running.close()
                at.update({target: running.enter_context(StoreProcess(target)) for target in targets})
                for server in at.values():
                    server.start()
            of_turn = turn
            return measure_one(case, at[name], f"/bench/{turn}")

        return take_turns(
            case.name,
            targets,
            once,
            repeats=repeats,
            progress=progress,
            warm_up=not fresh,
            once=lambda sample: sample.wall_s > _SLOW_S,
        )


def measure_one(case: StoreCase, server: StoreProcess, prefix: str) -> StoreSample:
    """One run. ``prefix`` is put before every key, so that keys are new.

    Raises ``DidNotFinish``, and ``RdzvError`` for a wrong reply or a process that has ended.
    """

    def cpu_s() -> float:
        """CPU time of the server so far, once it has nothing left to do (or keeps being busy)."""
        return settled(server.cpu_seconds, _SETTLE_LIMIT_S)

    memory = max(resident_memory(server.pid), forget_peak(server.pid))
    with servers.load_of(f"{server.target}, {case.name}", server.port, echo=server.target == "echo") as load:
        if case.workload not in ("storm", "hold"):
            load.connect(case.connections, window=_WINDOW, sources=[], storm=False, limit_s=case.limit_s)
        if case.workload == "multi_get":
            load.run("fill", prefix=prefix, rounds=1, gets=0, limit_s=case.limit_s)
        overflows, cpu = listen_overflows(), cpu_s()
        figures = _measured_part(case, load, prefix)
        cpu, overflows = cpu_s() - cpu, listen_overflows() - overflows
        peak = peak_memory(server.pid) or 0.0
    cpu_s()  # until it has seen its clients go
    return StoreSample(
        wall_s=figures.seconds,
        requests=figures.requests,
        cpu_us=cpu / max(1, figures.requests) * 1e6,
        p50_us=figures.p50_us,
        p99_us=figures.p99_us,
        grown_mib=max(0.0, peak - memory),
        listen_overflows=overflows,
        failures=figures.failures,
    )


def _measured_part(case: StoreCase, load: Load, prefix: str) -> Figures:
    if case.workload == "hold":
        figures = load.connect(case.connections, window=_WINDOW, sources=[], storm=False, limit_s=case.limit_s)
        load.idle(_IDLE_S)
        return figures
    if case.workload == "storm":
        return load.connect(case.connections, window=case.connections, sources=[], storm=True, limit_s=case.limit_s)
    return load.run(case.workload, prefix=prefix, rounds=case.rounds, gets=case.gets, limit_s=case.limit_s)


# the figures

_FIGURES: dict[str, tuple[str, str, Callable[[StoreSample], float]]] = {
    # figure: title, unit, value from a sample
    "wall": ("wall time", "s", lambda sample: sample.wall_s),
    "cpu_per_request": ("CPU of the server per request", "us", lambda sample: sample.cpu_us),
    "p50": ("round trip, median", "us", lambda sample: sample.p50_us),
    "p99": ("round trip, 99th percentile", "us", lambda sample: sample.p99_us),
    "grown": ("memory that the clients cost the server", "MiB", lambda sample: sample.grown_mib),
}


def points_of(case: StoreCase, targets: Sequence[str], turns: Turns[StoreSample]) -> list[Point]:
    """One point for each figure and server; memory only if that is the point of the case."""
    return [
        Point(
            "store",
            case.name,
            target,
            figure,
            title,
            unit,
            tuple(of(sample) for sample in turns.samples[target]),
            nodes=case.connections,
            axis="clients",
            reference=not target.startswith("ours"),
            unfinished=turns.unfinished.get(target, "") or _left_out(case, turns.samples[target]),
        )
        for figure, (title, unit, of) in _FIGURES.items()
        if figure != "grown" or case.workload == "hold"
        for target in targets
    ]


def _left_out(case: StoreCase, samples: Sequence[StoreSample]) -> str:
    """Why there is no ratio: a storm that some clients do not survive is not a storm of that many."""
    failed = sum(sum(sample.failures.values()) for sample in samples)
    return f"{failed} of {len(samples) * case.connections} connections failed" if failed else ""


def notes(case: StoreCase, turns: Turns[StoreSample]) -> list[str]:
    """What went wrong for some clients, one line each."""
    lines = []
    for target, samples in turns.samples.items():
        failures: dict[str, int] = {}
        for sample in samples:
            for reason, count in sample.failures.items():
                failures[reason] = failures.get(reason, 0) + count
        attempts = len(samples) * case.connections
        lines += [f"{target}: {count} of {attempts} connections failed: {why}" for why, count in failures.items()]
        if overflows := sum(sample.listen_overflows for sample in samples):
            lines.append(
                f"{target}: a full accept queue cost {overflows} connection attempts (TcpExt ListenOverflows, of the "
                "whole machine)"
            )
    return lines


def _caption(args: Namespace, targets: Sequence[str]) -> str:
    """What the workloads, the servers and the figures are."""
    kinds = [
        f"  {kind:10} {what}" for kind, what in KINDS.items() if any(target.startswith(kind) for target in targets)
    ]
    workloads = [f"  {name:10} {what}" for name, what in WORKLOADS.items() if name in args.workloads]
    parts = [*workloads, "", *kinds, "", _CAPTION]
    parts += [start_of_job.CAPTION] if "init" in args.workloads else []
    parts += [transport.CAPTION] if "worker" in args.workloads else []
    return "\n".join([*parts, names_remark()])
