"""The workers of ``rdzv bench transport``: processes that are forked once torch is there, and begin together."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any

from rdzv_launcher.bench.processes.forks import Fork
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.kvstore.tcpstore.wire import greet

PEERS = 8
REQUESTS_PER_ROUND = 3 * PEERS + 2
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Place:
    """Where the store is, and the process that has it."""

    pid: int
    port: int
    path: str


@dataclass(frozen=True)
class WorkersNeeded:
    """What the workers needed: together (``cpu_s``), and the slowest of them."""

    wall_s: float
    cpu_s: float
    start_s: float


def measure(place: Place, transport: str, clients: int, *, size: int, rounds: int) -> WorkersNeeded:
    """``clients`` workers do ``rounds`` rounds each, once all are connected. Raises ``RdzvError`` if one fails."""
    for module in (
        "torch.distributed",
        "rdzv_plugins.kvstore.tcpstore.plain_client",
        "rdzv_plugins.kvstore.tcpstore.unix_transport",
    ):
        import_module(module)  # before the fork, so that loading it is not measured
    workers: list[Fork] = []
    try:
        for rank in range(clients):
            workers.append(Fork(partial(_work, place, transport, rank, clients, size, rounds), workers))
        starts = [_hear(worker) for worker in workers]
        began = time.perf_counter()
        for worker in workers:
            worker.connection.sendall(b"g")
        used = [_hear(worker) for worker in workers]
        wall = time.perf_counter() - began
    finally:
        for worker in workers:
            worker.connection.close()
        for worker in workers:
            worker.reap()
    return WorkersNeeded(wall, sum(used), max(starts))


def _hear(worker: Fork) -> float:
    line = worker.connection.recv(100)
    if not line:
        raise RdzvError("a worker of the benchmark has ended; its reason is above")
    return float(json.loads(line))


def _work(place: Place, transport: str, rank: int, clients: int, size: int, rounds: int, end: socket.socket) -> None:
    began = time.perf_counter()
    store = _CONNECT[transport](place)
    end.sendall(json.dumps(time.perf_counter() - began).encode())
    if not end.recv(1):
        return
    before = time.process_time()
    _rounds(store, transport, rank, clients, size, rounds)
    end.sendall(json.dumps(time.process_time() - before).encode())
    end.recv(1)  # the store's end is not measured


def _rounds(store: Any, prefix: str, rank: int, clients: int, size: int, rounds: int) -> None:
    value = b"x" * size
    peers = [f"{prefix}/{(rank + step) % clients}" for step in range(PEERS)]
    store.set(f"{prefix}/{rank}", value)  # once, as ranks do: what is read often is a value that nobody changes
    for _ in range(rounds):
        store.set(f"{prefix}/own/{rank}", value)
        for peer in peers:
            store.wait([peer])
            store.get(peer)  # it waits, too
        store.add(f"{prefix}/sum", 1)


def _loopback(place: Place) -> Any:
    from torch.distributed import TCPStore

    return TCPStore("127.0.0.1", place.port, is_master=False, wait_for_workers=False, timeout=_timeout())


def _unix(place: Place) -> Any:
    from rdzv_plugins.kvstore.tcpstore.unix_transport import move, open_sockets

    before = open_sockets()
    store = _loopback(place)
    move(store, place.path, before)
    return store


def _python(place: Place) -> Any:
    from rdzv_plugins.kvstore.sockets.interruption import Interruption
    from rdzv_plugins.kvstore.tcpstore.plain_client import PlainClient

    class Named(socket.socket):
        """Has a peer name: PlainClient wants to say where it is connected to."""

        def getpeername(self) -> tuple[str, int]:
            return place.path, 0

    connection = Named(socket.AF_UNIX)
    connection.connect("\0" + place.path[1:])
    greet(connection)
    return PlainClient(connection, prefix="python", timeout=_TIMEOUT_S, interruption=Interruption())


def _timeout() -> timedelta:
    return timedelta(seconds=_TIMEOUT_S)


_CONNECT: dict[str, Callable[[Place], Any]] = {"loopback": _loopback, "unix": _unix, "python": _python}
