"""The workloads of ``rdzv bench store`` that are about ways to the store: ``init`` and ``worker``.

``init`` is the start of a job on gloo: the ranks are connections of the native load generator, which checks every
reply, and ask what torch's ranks ask, one request after another. ``worker`` has real processes with torch's client,
forked once torch is there, which begin together: each waits for the keys of its peers one by one and gets each, sets
one, and adds to a number. The processes of an ``init`` are new ones for every run.
"""

from __future__ import annotations

import multiprocessing
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from itertools import product
from multiprocessing.connection import Connection
from typing import Any

from rdzv_launcher.bench import servers
from rdzv_launcher.bench.children import Child, serve
from rdzv_launcher.bench.points import Point, take_turns
from rdzv_launcher.bench.results import Output

Stages = Mapping[str, Mapping[str, Any]]
"""Of one run: the figures and counts of each stage."""

ROUTES = ("direct", "tiered", "tiered-unix")
_STAGES = {"gloo init": "gloo", "barrier": "store_barrier"}
"""What is reported, and the workload of the load."""
_TRUNK = ("attach", "forward", "follow", "unfollow", "arrive", "give_back", "recalled")
_SLOW_S = 30.0
_INIT = {
    # figure: title, unit
    "init_wall": ("wall time of the start", "s"),
    "root_requests": ("requests at the root", "requests"),
    "root_bytes": ("bytes at the root", "bytes"),
}
INIT_CAPTION = """
In init all of it is on one machine, which plays every node: wall time holds what nodes would do at the same time on
machines of their own. A run that takes more than 30 s is not repeated.
  direct      every rank connects to the root
  tiered      every rank connects to the proxy of its node over loopback, or a Unix socket (tiered-unix)
  N ms        with a relay between the nodes and the root: of a round trip; within a node there is no delay. The relay's
              processor time is part of the wall time
  requests    at the root: those of the ranks, or what the proxies ask (they forward, follow keys, arrive at barriers);
              what a proxy says of itself every few seconds is left out
  bytes       that the root has received and sent, in the same time
  gloo init   each rank: ADD on torch's own key, SET of its blob, and for each of the ranks WAIT, WAIT, GET
  barrier     torch's BARRIER, once"""

TRANSPORTS = ("loopback", "unix")
SIZES = (1024, 8192)
PEERS = 8
REQUESTS_PER_ROUND = 3 * PEERS + 2
_ROUNDS, _QUICK_ROUNDS = 400, 10
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
In worker a round is {REQUESTS_PER_ROUND} requests, to a proxy in one process, with its root in another.
  loopback    torch's client by TCP to 127.0.0.1 (worker_transport=loopback)
  unix        the same client over a Unix socket (worker_transport=unix)
  wall        of all workers together, from the first request to the last answer, divided by the requests of one
  worker CPU  of the workers' processes, user and system, for each request"""


# init


def measure_init(args: Namespace, output: Output) -> None:
    """Measure all numbers of nodes, by all routes, without a delay and with it."""
    given_up: dict[str, str] = {}
    for nodes, each in args.job:
        _init_case(nodes, each, args, output, given_up)


def _init_case(nodes: int, each: int, args: Namespace, output: Output, given_up: dict[str, str]) -> None:
    delays = {"": 0.0} | ({f", {args.delay:g} ms": args.delay} if args.delay else {})
    ways = {f"{route}{delay}": (route, ms) for delay, ms in delays.items() for route in ROUTES}
    name = f"{nodes} nodes x {each} ranks"

    turns = take_turns(
        f"{name}, init",
        [*ways],
        lambda way, turn: run_once(*ways[way], nodes, each, args.limit),
        repeats=args.repeats,
        progress=output.progress,
        given_up=given_up,
        once=lambda stages: sum(stage["init_wall"] for stage in stages.values()) > _SLOW_S,
    )
    for delay, stage in product(delays, _STAGES):
        case = f"{name}, {stage}{delay}"
        runs = {route: [sample[stage] for sample in turns.samples[f"{route}{delay}"]] for route in ROUTES}
        points = [
            Point("store", case, route, figure, title, unit, tuple(float(run[figure]) for run in runs[route]), nodes,
                  reference=route == "direct", unfinished=turns.unfinished.get(f"{route}{delay}", ""))
            for figure, (title, unit) in _INIT.items()
            for route in ROUTES
        ]  # fmt: skip
        output.case(case, points, details={"runs": runs})


def run_once(route: str, delay_ms: float, nodes: int, per_node: int, limit_s: float) -> Stages:
    """One run, with its own processes.

    Raises ``DidNotFinish``, and ``RdzvError`` for a wrong reply or a process that ends.
    """
    ranks = nodes * per_node
    with ExitStack() as running:
        root = running.enter_context(Child("the root's process", servers.store_server))
        port = root.answer()
        if delay_ms:
            there = ("serve_delayed", f"{servers.LOOPBACK}:{port}", delay_ms / 2000)
            port = running.enter_context(Child("the relay", servers.native_server, *there)).answer()
        places = [f"{servers.LOOPBACK}:{port}"]
        if route != "direct":
            proxies = running.enter_context(Child("the proxies' process", servers.proxies, port, nodes)).answer()
            unix = route == "tiered-unix"
            places = [f"unix:{path}" if unix else f"{servers.LOOPBACK}:{at}" for at, path in proxies]
        found = {}
        with servers.load_of(f"{route}, {ranks} ranks on {nodes} nodes", places) as load:
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


# worker


def measure_workers(args: Namespace, output: Output) -> None:
    """Measure all numbers of workers and sizes of values, by both transports."""
    rounds = _QUICK_ROUNDS if args.quick else _ROUNDS
    with Child("the process of torch's workers", _workers) as workers:
        workers.answer()
        for size, count in product(SIZES, args.workers):
            with ExitStack() as running:
                root = running.enter_context(Child("the root's process", servers.store_server)).answer()
                proxy = Child("the process of a node's proxy", servers.proxies, root, 1)
                (place,) = running.enter_context(proxy).answer()
                work = {"place": place, "count": count, "size": size, "rounds": rounds}
                _worker_case(workers, work, args.repeats, output)


def _worker_case(workers: Child, work: Mapping[str, Any], repeats: int, output: Output) -> None:
    count = work["count"]
    case = f"{count} worker{'s' if count > 1 else ''}, values of {work['size']} bytes"

    def once(transport: str, turn: int) -> Any:
        return workers.ask({"transport": transport, **work}, _RUN_LIMIT_S)

    turns = take_turns(case, TRANSPORTS, once, repeats=repeats, progress=output.progress)
    points = [
        Point("store", case, name, figure, title, unit, tuple(sample[figure] for sample in turns.samples[name]),
              nodes=count, axis="workers", reference=name == "loopback")
        for figure, (title, unit) in _WORKER.items()
        for name in TRANSPORTS
    ]  # fmt: skip
    output.case(case, points)


def _workers(connection: Connection) -> None:
    """A child: its forks are the workers."""
    import torch.distributed  # noqa: F401  (before the forks, so that loading it is not measured)

    from rdzv_plugins.torch_bridge import worker_transport  # noqa: F401

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

    from rdzv_plugins.torch_bridge.worker_transport import move, open_sockets

    before, timeout = open_sockets(), timedelta(seconds=_TIMEOUT_S)
    store: Any = TCPStore(servers.LOOPBACK, place[0], is_master=False, wait_for_workers=False, timeout=timeout)
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
