"""The workload ``worker`` of ``rdzv bench store``: what a request costs a worker, by loopback and by a Unix socket.

One process is a node's proxy with its root, as many as there are workers are forked once torch is there, and begin
together; the transports take turns. The requests are those of gloo: a worker waits for the keys of its peers one by one
and gets each, sets one, and adds to a number.
"""

from __future__ import annotations

import multiprocessing
import time
from argparse import Namespace
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from rdzv_launcher.bench import servers
from rdzv_launcher.bench.children import Child, serve
from rdzv_launcher.bench.points import Point, take_turns
from rdzv_launcher.bench.results import Output
from rdzv_plugins.errors import RdzvError

TRANSPORTS = ("loopback", "unix")
PEERS = 8
REQUESTS_PER_ROUND = 3 * PEERS + 2
_TIMEOUT_S = 60.0
_RUN_LIMIT_S = 600.0
_FIGURES = {
    # figure: title, unit
    "request_wall": ("wall time of a request of a worker", "us"),
    "worker_cpu": ("CPU of the worker per request", "us"),
    "store_cpu": ("CPU of the node's store per request", "us"),
    "start": ("until the store of a worker is ready", "ms"),
}
CAPTION = f"""
In worker a round is {REQUESTS_PER_ROUND} requests, to a proxy and its root in one process.
  loopback    torch's client by TCP to 127.0.0.1 (worker_transport=loopback)
  unix        the same client over a Unix socket (worker_transport=unix)
  wall        of all workers together, from the first request to the last answer, divided by the requests of one
  worker CPU  of the workers' processes, user and system, for each request
  store CPU   of the process that has the proxy and the root, for each request
  start       until a worker's store is ready (the largest of the workers)"""


def measure(args: Namespace, output: Output) -> None:
    """Measure all numbers of workers and sizes of values, by both transports."""
    with Child("the process of torch's workers", _workers) as workers:
        workers.answer()
        for size in args.sizes:
            for count in args.workers:
                _case(workers, count, size, args, output)


def _case(workers: Child, count: int, size: int, args: Namespace, output: Output) -> None:
    case = f"{count} worker{'s' if count > 1 else ''}, values of {size} bytes"
    requests = args.worker_rounds * REQUESTS_PER_ROUND
    with Child("the process of a node's store", servers.node_store) as store:
        port, path = store.answer()

        def once(transport: str, turn: int) -> dict[str, float]:
            before = store.cpu_seconds()
            question = {"place": (port, path), "transport": transport, "count": count, "size": size}
            taken = workers.ask(question | {"rounds": args.worker_rounds}, _RUN_LIMIT_S)
            # this includes what connecting has cost the store: a request in a thousand
            cpu = store.cpu_seconds() - before
            return {
                "request_wall": taken["wall_s"] / requests * 1e6,
                "worker_cpu": taken["cpu_s"] / requests / count * 1e6,
                "store_cpu": cpu / requests / count * 1e6,
                "start": taken["start_s"] * 1e3,
            }

        turns = take_turns(case, TRANSPORTS, once, repeats=args.repeats, progress=output.progress)
    points = [
        Point(
            "store",
            case,
            name,
            figure,
            title,
            unit,
            tuple(sample[figure] for sample in turns.samples[name]),
            nodes=count,
            axis="workers",
            reference=name == "loopback",
        )
        for figure, (title, unit) in _FIGURES.items()
        for name in TRANSPORTS
    ]
    output.case(case, points)


# in the process of the workers


def _workers(connection: Connection) -> None:
    import torch.distributed  # noqa: F401  (before the forks, so that loading it is not measured)

    from rdzv_plugins.kvstore.tcpstore import unix_transport  # noqa: F401

    connection.send("ready")
    serve(connection, _forked)


def _forked(place: tuple[int, str], transport: str, count: int, size: int, rounds: int) -> dict[str, float]:
    """So many workers do so many rounds each, once all are connected. Raises ``RdzvError`` if one fails.

    What they needed: together (``cpu_s``), and the slowest of them.
    """
    fork = multiprocessing.get_context("fork")
    ends: list[Connection] = []
    forks = []
    for rank in range(count):
        mine, theirs = fork.Pipe()
        peers = [f"{transport}/{(rank + step) % count}" for step in range(PEERS)]
        forks.append(fork.Process(target=_work, args=(theirs, place, transport, rank, peers, size, rounds)))
        forks[-1].start()
        theirs.close()
        ends.append(mine)
    try:
        starts = _heard(ends)
        began = time.perf_counter()
        for end in ends:
            end.send("go")
        used = _heard(ends)
        wall = time.perf_counter() - began
    finally:
        for end in ends:
            end.close()
        for each in forks:
            each.kill()
            each.join()
    return {"wall_s": wall, "cpu_s": sum(used), "start_s": max(starts)}


def _heard(ends: Sequence[Connection]) -> list[float]:
    try:
        return [end.recv() for end in ends]
    except EOFError:
        raise RdzvError("a worker of the benchmark has ended") from None


def _work(
    end: Connection, place: tuple[int, str], transport: str, rank: int, peers: list[str], size: int, rounds: int
) -> None:
    from torch.distributed import TCPStore

    from rdzv_plugins.kvstore.tcpstore.unix_transport import move, open_sockets

    began, before = time.perf_counter(), open_sockets()
    store: Any = TCPStore(
        servers.LOOPBACK, place[0], is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_TIMEOUT_S)
    )
    if transport == "unix":
        move(store, place[1], before)
    end.send(time.perf_counter() - began)
    end.recv()
    cpu, value = time.process_time(), b"x" * size
    store.set(f"{transport}/{rank}", value)  # once, as ranks do: what is read often is a value that nobody changes
    for _ in range(rounds):
        store.set(f"{transport}/own/{rank}", value)
        for peer in peers:
            store.wait([peer])
            store.get(peer)  # it waits, too
        store.add(f"{transport}/sum", 1)
    end.send(time.process_time() - cpu)
    end.recv()  # the store's end is not measured; nor is anything after it
