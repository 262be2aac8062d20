"""``rdzv bench store``: what a request costs our store server, torch's two, and a bare epoll loop, in one run.

One process holds all clients (the native load generator), each server has a process of its own, and the servers take
turns. The figure to look at is the server's CPU time per request: load on the machine affects it least.

Two workloads are about the ways to the store. ``init`` is the start of a job on gloo: the ranks are connections of the
load generator, which checks every reply, and ask what torch's ranks ask, one request after another; its processes are
new ones for every run. ``worker`` has real processes with torch's client, forked once torch is there, which begin
together: each waits for the keys of its peers one by one and gets each, sets one, and adds to a number.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import socket
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import product
from multiprocessing.connection import Connection
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from rdzv_launcher.bench.children import (
    Child,
    Guard,
    forget_peak,
    listen_overflows,
    names_remark,
    peak_memory,
    serve,
    settled,
)
from rdzv_launcher.bench.points import DidNotFinish, Point, Turns, points_of, take_turns
from rdzv_launcher.bench.results import BenchOutput
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import MissingDependency, RdzvError, UsageError
from rdzv_plugins.kvstore.native.limits import raise_file_limit

if TYPE_CHECKING:
    from rdzv_launcher.bench._load import Load

LOOPBACK = "127.0.0.1"
_BACKLOG = 2**16
"""The kernel caps it at somaxconn."""
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
Medians (smallest .. largest) over the runs, after a warm-up; a run of more than 10 s is not repeated. Ratios are
medians over the turns; none where the runs of one server differ by more than the two servers.
  wall     of the phase after connecting; in storm and hold, of connecting itself
  CPU      of the server's process (all threads, user and system, from schedstat) per request, including the kernel's
           work to deliver a reply to a client on the same machine
  p50, p99 round trips, without waits that other clients end; in storm, from connect() to the answer to PING
  memory   in hold: peak resident memory of the server's process above that before the clients came; the servers are
           new in each run"""

Stages = Mapping[str, Mapping[str, Any]]
"""Of one run: the figures and counts of each stage."""

ROUTES = ("direct", "tiered", "tiered-unix")
_STAGES = {"gloo init": "gloo", "barrier": "store_barrier"}
"""What is reported, and the workload of the load."""
_TRUNK = ("attach", "forward", "follow", "unfollow", "arrive", "give_back", "recalled")
_SLOW_START_S = 30.0
_INIT = {
    # figure: title, unit
    "init_wall": ("wall time of the start", "s"),
    "root_requests": ("requests at the root", "requests"),
    "root_bytes": ("bytes at the root", "bytes"),
}
INIT_CAPTION = """
In init this machine plays every node: wall time includes what nodes would do in parallel on their own machines. A
run of more than 30 s is not repeated.
  direct      every rank connects to the root
  tiered      every rank connects to its node's proxy over loopback, or a Unix socket (tiered-unix)
  N ms        round trip of a relay between the nodes and the root, whose processor time is part of the wall time;
              there is no delay within a node
  requests    at the root: of the ranks, or of the proxies (which forward, follow keys, arrive at barriers), without
              the proxies' periodic reports
  bytes       received and sent by the root meanwhile
  gloo init   each rank: ADD on torch's own key, SET of its blob, and for each rank WAIT, WAIT, GET
  barrier     torch's BARRIER, once"""

TRANSPORTS = ("loopback", "unix")
SIZES = (1024, 8192)
PEERS = 8
REQUESTS_PER_ROUND = 3 * PEERS + 2
_WORKER_ROUNDS, _QUICK_WORKER_ROUNDS = 400, 10
_TIMEOUT_S = 60.0
_gate: Any = None
"""A barrier of the workers, which are forks."""
_RUN_LIMIT_S = 600.0
_WORKER = {
    # figure: title, unit
    "request_wall": ("wall time of a request of a worker", "us"),
    "worker_cpu": ("CPU of the worker per request", "us"),
}
WORKER_CAPTION = f"""
In worker a round is {REQUESTS_PER_ROUND} requests to a proxy in one process, with its root in another.
  loopback    torch's client over TCP to 127.0.0.1 (worker_transport=loopback)
  unix        the same client over a Unix socket (worker_transport=unix)
  wall        of all workers together, from the first request to the last answer, divided by one worker's requests
  worker CPU  of the workers' processes, user and system, per request"""


def run(args: Namespace) -> int:
    """Measure and print; returns the exit code.

    Raises ``UsageError``, ``MissingDependency`` if the load generator was not built, and ``RdzvError`` for a wrong
    reply or a server that ends.
    """
    _check(args)
    load_module()
    with Guard(), BenchOutput(args) as output:
        for workload in args.workloads:
            if workload == "init":
                given_up: dict[str, str] = {}
                for nodes, each in args.job:
                    _init_case(nodes, each, args, output, given_up)
            elif workload == "worker":
                _measure_workers(args, output)
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
            raise UsageError(f"--targets: '{text}' is not one of {', '.join(KINDS)}, ours:N")
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
            f"{most} connections need {most + _OTHER_FILES} open files, but the limit is {allowed}",
            remedy="Raise the hard limit (ulimit -Hn), or reduce --connections and --job.",
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
        return running.enter_context(Child(what, store_server, int(threads or 0)))
    if kind == "echo":
        return running.enter_context(Child(what, native_server, "serve_echo"))
    # otherwise torch's messages about every reset connection would count as its CPU time
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    return running.enter_context(Child(what, torch_server, kind == "libuv", environment=quiet))


def _case(case: StoreCase, args: Namespace, output: BenchOutput) -> None:
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
            begins=output.begins,
            warm_up=not fresh,
            once=lambda sample: bool(sample["wall"] > _SLOW_S),
        )
    output.case(case.name, store_points(case, turns), details={"runs": turns.samples}, notes=notes(case, turns))


def measure_one(case: StoreCase, target: str, server: Child, port: int, prefix: str) -> StoreSample:
    """One run. ``prefix`` is put before every key, so that keys are new.

    Besides the figures a sample has the number of ``requests``, and what failed. Raises ``DidNotFinish``, and
    ``RdzvError`` for a wrong reply or a process that has ended.
    """

    def cpu_s() -> float:
        """CPU time of the server so far, once it has nothing left to do (or keeps being busy)."""
        return settled(server.cpu_seconds, _SETTLE_LIMIT_S)

    memory = forget_peak(server.pid)
    place = f"{LOOPBACK}:{port}"
    with load_of(f"{target}, {case.name}", [place], echo=target == "echo") as load:
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


def store_points(case: StoreCase, turns: Turns[StoreSample]) -> list[Point]:
    """One point for each figure and server; memory only if that is the point of the case."""
    figures = {name: each for name, each in _FIGURES.items() if name != "grown" or case.workload == "hold"}
    theirs = {target for target in turns.samples if not target.startswith("ours")}
    left_out = {target: _left_out(case, samples) for target, samples in turns.samples.items()}
    turns = replace(turns, unfinished=left_out | turns.unfinished)
    return points_of("store", case.name, figures, turns, theirs, case.connections, "clients")


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
    parts += [INIT_CAPTION] if "init" in args.workloads else []
    parts += [WORKER_CAPTION] if "worker" in args.workloads else []
    return "\n".join([*parts, names_remark()])


# the workload init


def _init_case(nodes: int, each: int, args: Namespace, output: BenchOutput, given_up: dict[str, str]) -> None:
    """Measure one number of nodes, by all routes, without a delay and with it."""
    delays = {"": 0.0} | ({f", {args.delay:g} ms": args.delay} if args.delay else {})
    ways = {f"{route}{delay}": (route, ms) for delay, ms in delays.items() for route in ROUTES}
    name = f"{nodes} nodes x {each} ranks"
    turns = take_turns(
        f"{name}, init",
        [*ways],
        lambda way, turn: run_once(*ways[way], nodes, each, args.limit),
        repeats=args.repeats,
        begins=output.begins,
        given_up=given_up,
        once=lambda stages: sum(stage["init_wall"] for stage in stages.values()) > _SLOW_START_S,
    )
    for delay, stage in product(delays, _STAGES):
        case = f"{name}, {stage}{delay}"
        runs = {route: [sample[stage] for sample in turns.samples[f"{route}{delay}"]] for route in ROUTES}
        unfinished = {route: turns.unfinished.get(f"{route}{delay}", "") for route in ROUTES}
        points = points_of("store", case, _INIT, Turns(runs, unfinished), ["direct"], nodes)
        output.case(case, points, details={"runs": runs})


def run_once(route: str, delay_ms: float, nodes: int, per_node: int, limit_s: float) -> Stages:
    """One run, with its own processes.

    Raises ``DidNotFinish``, and ``RdzvError`` for a wrong reply or a process that ends.
    """
    ranks = nodes * per_node
    with ExitStack() as running:
        root = running.enter_context(Child("the root's process", store_server))
        port = root.answer()
        if delay_ms:
            there = ("serve_delayed", f"{LOOPBACK}:{port}", delay_ms / 2000)
            port = running.enter_context(Child("the relay", native_server, *there)).answer()
        places = [f"{LOOPBACK}:{port}"]
        if route != "direct":
            served = running.enter_context(Child("the proxies' process", proxies, port, nodes)).answer()
            unix = route == "tiered-unix"
            places = [f"unix:{path}" if unix else f"{LOOPBACK}:{at}" for at, path in served]
        found = {}
        with load_of(f"{route}, {ranks} ranks on {nodes} nodes", places) as load:
            load.connect(ranks, limit_s=limit_s)
            for stage, workload in _STAGES.items():
                before = root.ask({})
                figures = load.run(workload, prefix="", rounds=1, limit_s=limit_s)
                after = root.ask({})
                asked = new_requests(after["requests"], before["requests"])
                found[stage] = {
                    "init_wall": figures.seconds,
                    "root_requests": sum(asked.values()),
                    "root_bytes": sum(after["bytes"].values()) - sum(before["bytes"].values()),
                    "asked": figures.requests,
                    "root": asked,
                    "connections": after["connections"]["open"],
                }
        return found


def new_requests(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """What was asked since; only of trunks if there are any, as what they forward is counted again by its name."""
    new = {name: count - before.get(name, 0) for name, count in now.items()}
    trunks = {name: count for name, count in new.items() if name in _TRUNK and count}
    return trunks or {name: count for name, count in new.items() if count and name not in ("framed", "report")}


# the workload worker


def _measure_workers(args: Namespace, output: BenchOutput) -> None:
    """Measure all numbers of workers and sizes of values, by both transports."""
    rounds = _QUICK_WORKER_ROUNDS if args.quick else _WORKER_ROUNDS
    with Child("the process of torch's workers", _workers) as workers:
        workers.answer()
        for size, count in product(SIZES, args.workers):
            with ExitStack() as running:
                root = running.enter_context(Child("the root's process", store_server)).answer()
                proxy = Child("the process of a node's proxy", proxies, root, 1)
                (place,) = running.enter_context(proxy).answer()
                work = {"place": place, "count": count, "size": size, "rounds": rounds}
                _worker_case(workers, work, args.repeats, output)


def _worker_case(workers: Child, work: Mapping[str, Any], repeats: int, output: BenchOutput) -> None:
    count = work["count"]
    case = f"{count} worker{'s' if count > 1 else ''}, values of {work['size']} bytes"

    def once(transport: str, turn: int) -> Any:
        return workers.ask({"transport": transport, **work}, _RUN_LIMIT_S)

    turns = take_turns(case, TRANSPORTS, once, repeats=repeats, begins=output.begins)
    output.case(case, points_of("store", case, _WORKER, turns, ["loopback"], count, "workers"))


def _workers(connection: Connection) -> None:
    """A child: its forks are the workers."""
    import torch.distributed  # noqa: F401  (before the forks, so that loading it is not measured)

    from rdzv_plugins.torchrun import worker_transport  # noqa: F401

    serve(connection, "ready", _together)


def _together(place: tuple[int, str], transport: str, count: int, size: int, rounds: int) -> dict[str, float]:
    """So many workers do so many rounds each, once all are connected: what a request needs, in microseconds."""
    global _gate
    fork = multiprocessing.get_context("fork")
    _gate = fork.Barrier(count)  # at which each waits in its turn, so none takes the work of two
    work = partial(_work, place, transport, count, size, rounds)
    with ProcessPoolExecutor(count, fork) as pool:
        began, ended, cpu = zip(*pool.map(work, range(count)), strict=True)
    requests = rounds * REQUESTS_PER_ROUND
    return {
        "request_wall": (max(ended) - min(began)) / requests * 1e6,
        "worker_cpu": sum(cpu) / requests / count * 1e6,
    }


def _work(
    place: tuple[int, str], transport: str, count: int, size: int, rounds: int, rank: int
) -> tuple[float, float, float]:
    """One worker: when it began and ended, and its CPU seconds in between."""
    from torch.distributed import TCPStore

    from rdzv_plugins.torchrun.worker_transport import move, open_sockets

    before, timeout = open_sockets(), timedelta(seconds=_TIMEOUT_S)
    store: Any = TCPStore(LOOPBACK, place[0], is_master=False, wait_for_workers=False, timeout=timeout)
    if transport == "unix":
        move(store, place[1], before)
    peers: Sequence[str] = [f"{transport}/{(rank + step) % count}" for step in range(PEERS)]
    value = b"x" * size
    _gate.wait(_TIMEOUT_S)
    began, cpu = time.perf_counter(), time.process_time()
    store.set(f"{transport}/{rank}", value)  # once, as ranks do: what is read often is a value that nobody changes
    for _ in range(rounds):
        store.set(f"{transport}/own/{rank}", value)
        for peer in peers:
            store.wait([peer])
            store.get(peer)  # it waits, too
        store.add(f"{transport}/sum", 1)
    return began, time.perf_counter(), time.process_time() - cpu


# child processes: each imports what it needs when it runs, says where it serves, and ends with its connection


def load_module() -> ModuleType:
    """The native load generator. Raises ``MissingDependency`` if it was not built."""
    try:
        from rdzv_launcher.bench import _load as module
    except ImportError as error:
        raise MissingDependency(
            f"rdzv bench store needs the load generator, which this installation does not have: {error}",
            remedy="It is built on Linux with a C++20 compiler: apt-get install g++ (or similar), then "
            "pip install --force-reinstall --no-cache-dir --no-binary rdzv-plugins rdzv-plugins.",
        ) from None
    return module


@contextmanager
def load_of(who: str, places: Sequence[str], *, echo: bool = False) -> Iterator[Load]:
    """Clients of the servers at these places, as many of each.

    What does not end within its limit becomes ``DidNotFinish``; a wrong reply ``RdzvError``, with ``who``.
    """
    module = load_module()
    load: Load = module.Load(places, echo=echo)
    try:
        yield load
    except module.TimeLimit as error:
        raise DidNotFinish(str(error)) from None
    except module.LoadError as error:
        raise RdzvError(f"{who}: {error}") from None
    finally:
        load.close()


def store_server(connection: Connection, threads: int = 0) -> None:
    """Our server, which answers with its statistics."""
    from rdzv_plugins.kvstore.native.server import StoreServer

    raise_file_limit()
    server = StoreServer(LOOPBACK, threads=threads)
    serve(connection, server.port, server.stats)


def torch_server(connection: Connection, use_libuv: bool) -> None:
    """torch's own."""
    from datetime import timedelta

    from torch.distributed import TCPStore

    raise_file_limit()
    timeout = timedelta(seconds=60)
    store = TCPStore(LOOPBACK, 0, is_master=True, timeout=timeout, wait_for_workers=False, use_libuv=use_libuv)
    serve(connection, store.port)


def native_server(connection: Connection, function: str, *arguments: object) -> None:
    """A server of the load generator: the bare loop, or the relay, a path to a server that takes its time."""
    raise_file_limit()
    listener = socket.create_server((LOOPBACK, 0), backlog=_BACKLOG)
    target = getattr(load_module(), function)
    threading.Thread(target=target, args=(listener.fileno(), *arguments), daemon=True).start()
    serve(connection, listener.getsockname()[1])


def proxies(connection: Connection, root: int, nodes: int) -> None:
    """The proxies of this many nodes, each with its own threads; says at which port and path each serves."""
    from rdzv_plugins.kvstore.native.server import StoreProxy

    raise_file_limit()
    at = Endpoint(LOOPBACK, root)
    found = [StoreProxy(at, name=f"node-{node}", leaf=True, timeout=60.0) for node in range(nodes)]
    paths = [f"@rdzv-bench-{os.getpid()}-{node}" for node in range(nodes)]
    for proxy, path in zip(found, paths, strict=True):
        proxy.listen_unix(path)
    serve(connection, [(proxy.listen(), path) for proxy, path in zip(found, paths, strict=True)])
