"""``rdzv bench store``: what a request costs our store server, torch's two, and a bare epoll loop, in one run.

One process holds all clients (the native load generator), each server has a process of its own, and the servers take
turns. The figure to look at is the server's CPU time per request: load on the machine affects it least. The workloads
``init`` and ``worker`` are about the ways to the store: see ``ways``.
"""

from __future__ import annotations

import resource
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from rdzv_launcher.bench import points, servers, ways
from rdzv_launcher.bench.children import Child, Guard, forget_peak, listen_overflows, names_remark, peak_memory, settled
from rdzv_launcher.bench.points import Point, Turns, take_turns
from rdzv_launcher.bench.results import Output
from rdzv_plugins.errors import UsageError
from rdzv_plugins.kvstore.native.limits import raise_file_limit

StoreSample: TypeAlias = Mapping[str, Any]
"""The figures of one run against one server by name, and what else is known of it."""

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
_TIMES = {"storm": 4, "hold": 8}
"""How many times as many clients as --connections says."""
_ROUNDS, _QUICK_ROUNDS = 10, 2
_IDLE_S = 1.0
_OTHER_FILES = 100
_FILES_PER_PROXY = 10
"""Besides one for each worker."""
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
    _check(args)
    servers.load_module()
    with Guard(), Output(args) as output:
        for workload in args.workloads:
            if workload == "init":
                given_up: dict[str, str] = {}
                for nodes, each in args.job:
                    ways.measure_init(nodes, each, args, output, given_up)
            elif workload == "worker":
                ways.measure_workers(args, output)
            else:
                rounds = _QUICK_ROUNDS if args.quick else _ROUNDS
                for count in args.connections:
                    case = StoreCase(workload, count * _TIMES.get(workload, 1), rounds, args.limit)
                    _case(case, args, output)
        output.end(_caption(args))
    return 0


def _check(args: Namespace) -> None:
    """Raises ``UsageError``, also if this process, or that of all proxies, may not have as many connections."""
    for text in args.targets:
        kind, colon, threads = text.partition(":")
        if kind not in KINDS or (colon and (kind != "ours" or not threads.isdecimal() or int(threads) < 1)):
            raise UsageError(f"--targets: '{text}' is none of {', '.join(KINDS)}, ours:N")
    most = 0
    for workload in args.workloads:
        if workload == "init":
            most = max(most, *(nodes * (each + _FILES_PER_PROXY) for nodes, each in args.job))
        elif workload != "worker":
            most = max(most, max(args.connections) * _TIMES.get(workload, 1))
    raise_file_limit()
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < most + _OTHER_FILES:
        raise UsageError(
            f"{most} connections need {most + _OTHER_FILES} open files; this process may have {allowed}",
            remedy="Raise the hard limit (ulimit -Hn), or ask for fewer by --connections and --job.",
        )


# what is compared, and in what


@dataclass(frozen=True)
class StoreCase:
    """A workload with a number of connections."""

    workload: str
    connections: int
    rounds: int
    limit_s: float

    @property
    def name(self) -> str:
        """The case in a few words."""
        return f"{self.workload}, {self.connections} clients"


def start(target: str, running: ExitStack) -> Child:
    """A server of one of the ``KINDS``, which ends with ``running``; it will say its port."""
    kind, _, threads = target.partition(":")
    what = f"the server '{target}'"
    if kind == "ours":
        return running.enter_context(Child(what, servers.store_server, int(threads or 0)))
    if kind == "echo":
        return running.enter_context(Child(what, servers.native_server, "serve_echo"))
    # otherwise torch's messages about every reset connection would count as its CPU time
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    return running.enter_context(Child(what, servers.torch_server, kind == "libuv", environment=quiet))


def _case(case: StoreCase, args: Namespace, output: Output) -> None:
    """Turns of all servers of one case: the same over all turns, or new ones where they must have held nothing yet."""
    fresh, of_turn = case.workload == "hold", -1
    at: dict[str, tuple[Child, int]] = {}
    with ExitStack() as running:

        def once(name: str, turn: int) -> StoreSample:
            nonlocal of_turn
            if not at or (fresh and turn != of_turn):
                running.close()
                started = {target: start(target, running) for target in args.targets}
                at.update({target: (server, server.answer()) for target, server in started.items()})
            of_turn = turn
            return measure_one(case, name, *at[name], f"/bench/{turn}")

        turns = take_turns(
            case.name,
            args.targets,
            once,
            repeats=args.repeats,
            progress=output.progress,
            warm_up=not fresh,
            once=lambda sample: bool(sample["wall"] > _SLOW_S),
        )
    output.case(case.name, points_of(case, turns), details={"runs": turns.samples}, notes=notes(case, turns))


def measure_one(case: StoreCase, target: str, server: Child, port: int, prefix: str) -> StoreSample:
    """One run. ``prefix`` is put before every key, so that keys are new.

    Besides the figures a sample has the number of ``requests``, and what failed. Raises ``DidNotFinish``, and
    ``RdzvError`` for a wrong reply or a process that has ended.
    """

    def cpu_s() -> float:
        """CPU time of the server so far, once it has nothing left to do (or keeps being busy)."""
        return settled(server.cpu_seconds, _SETTLE_LIMIT_S)

    memory = forget_peak(server.pid)
    place = f"{servers.LOOPBACK}:{port}"
    with servers.load_of(f"{target}, {case.name}", [place], echo=target == "echo") as load:
        connects = case.workload in _TIMES  # which then is what is measured
        if not connects:
            load.connect(case.connections, limit_s=case.limit_s)
        if case.workload == "multi_get":
            load.run("fill", prefix=prefix, rounds=1, limit_s=case.limit_s)
        overflows, cpu = listen_overflows(), cpu_s()
        if connects:
            figures = load.connect(case.connections, storm=case.workload == "storm", limit_s=case.limit_s)
        else:
            figures = load.run(case.workload, prefix=prefix, rounds=case.rounds, limit_s=case.limit_s)
        if case.workload == "hold":
            load.idle(_IDLE_S)
        cpu, overflows = cpu_s() - cpu, listen_overflows() - overflows
        peak = peak_memory(server.pid)
    cpu_s()  # until it has seen its clients go
    return {
        "wall": figures.seconds,
        "requests": figures.requests,
        "cpu_per_request": cpu / max(1, figures.requests) * 1e6,
        "p50": figures.p50_us,
        "p99": figures.p99_us,
        "grown": max(0.0, peak - memory),  # what a server needed to start is not included
        "listen_overflows": overflows,
        "failures": figures.failures,
    }


# the figures

_FIGURES = {
    # figure: title, unit
    "wall": ("wall time", "s"),
    "cpu_per_request": ("CPU of the server per request", "us"),
    "p50": ("round trip, median", "us"),
    "p99": ("round trip, 99th percentile", "us"),
    "grown": ("memory that the clients cost the server", "MiB"),
}


def points_of(case: StoreCase, turns: Turns[StoreSample]) -> list[Point]:
    """One point for each figure and server; memory only if that is the point of the case."""
    figures = {name: each for name, each in _FIGURES.items() if name != "grown" or case.workload == "hold"}
    theirs = {target for target in turns.samples if not target.startswith("ours")}
    left_out = {target: _left_out(case, samples) for target, samples in turns.samples.items()}
    turns = replace(turns, unfinished=left_out | turns.unfinished)
    return points.points_of("store", case.name, figures, turns, theirs, case.connections, "clients")


def _left_out(case: StoreCase, samples: Sequence[StoreSample]) -> str:
    """Why there is no ratio: a storm that some clients do not survive is not a storm of that many."""
    failed = sum(sum(sample["failures"].values()) for sample in samples)
    return f"{failed} of {len(samples) * case.connections} connections failed" if failed else ""


def notes(case: StoreCase, turns: Turns[StoreSample]) -> list[str]:
    """What went wrong for some clients, one line each."""
    lines = []
    for target, samples in turns.samples.items():
        failures: Counter[str] = Counter()
        for sample in samples:
            failures.update(sample["failures"])
        attempts = len(samples) * case.connections
        lines += [f"{target}: {count} of {attempts} connections failed: {why}" for why, count in failures.items()]
        if overflows := sum(sample["listen_overflows"] for sample in samples):
            lines.append(
                f"{target}: a full accept queue cost {overflows} connection attempts (TcpExt ListenOverflows, of the "
                "whole machine)"
            )
    return lines


def _caption(args: Namespace) -> str:
    """What the workloads, the servers and the figures are."""
    kinds = [
        f"  {kind:10} {what}" for kind, what in KINDS.items() if any(target.startswith(kind) for target in args.targets)
    ]
    workloads = [f"  {name:10} {what}" for name, what in WORKLOADS.items() if name in args.workloads]
    parts = [*workloads, "", *kinds, "", _CAPTION]
    parts += [ways.INIT_CAPTION] if "init" in args.workloads else []
    parts += [ways.WORKER_CAPTION] if "worker" in args.workloads else []
    return "\n".join([*parts, names_remark()])
