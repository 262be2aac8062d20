"""The workload "many" of ``rdzv bench store``: more clients than one process may have, and as many servers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from rdzv_launcher.bench.method.readings import listen_losses, peak_memory, resident_memory
from rdzv_launcher.bench.method.turns import DidNotFinish
from rdzv_launcher.bench.processes.parts import Part
from rdzv_launcher.bench.store.cases import StoreCase, StoreSample
from rdzv_launcher.bench.store.servers import StoreProcess

_WINDOW = 256
"""The most connections that each process opens at a time."""
_SOURCES = 16
"""Source addresses of a process: a few thousand connections from each do not fill the ports that Linux tries first."""


def measure_many(case: StoreCase, servers: Sequence[StoreProcess], prefix: str) -> StoreSample:
    """One run: all clients connect, stay, and then each adds 1 to a key of its server. The sums have to be right.

    Raises ``DidNotFinish``, and ``RdzvError`` for a wrong reply or a process that has ended.
    """
    memory = sum(resident_memory(server.pid) for server in servers)
    with ExitStack() as running:
        clients = []
        for server in servers:
            task = {"who": f"{server.target.name}, {case.name}", "port": server.port, "echo": server.target.echo}
            clients.append(running.enter_context(Part("clients", **task)))
        for part in clients:
            part.start()
        losses, cpu = listen_losses(), _settled_cpu_seconds(servers)
        began = time.monotonic()
        answers = _all(clients, [_connect(number, share, case.limit_s) for number, share in enumerate(case.shares)])
        connected = time.monotonic()
        question = {"phase": "enrol", "prefix": prefix, "rounds": 1, "gets": 0, "limit_s": case.limit_s}
        answers += _all(clients, [question] * len(clients))
        asked = time.monotonic()
        cpu = _settled_cpu_seconds(servers) - cpu
        losses = (listen_losses()[0] - losses[0], listen_losses()[1] - losses[1])
        peak = sum(peak_memory(server.pid) or 0.0 for server in servers)
    _settled_cpu_seconds(servers)  # until they have seen their clients go
    requests = sum(answer["requests"] for answer in answers)
    return StoreSample(
        wall_s=asked - began,
        requests=requests,
        cpu_us=cpu / max(1, requests) * 1e6,
        p50_us=max(answer["p50_us"] for answer in answers),
        p99_us=max(answer["p99_us"] for answer in answers),
        peak_mib=peak,
        grown_mib=max(0.0, peak - memory),
        listen_overflows=losses[0],
        listen_drops=losses[1],
        phases={"connect": connected - began, "ask": asked - connected},
    )


def _connect(number: int, share: int, limit_s: float) -> dict[str, Any]:
    sources = [f"127.2.{number & 255}.{host}" for host in range(1, 1 + _SOURCES)]
    return {"phase": "connect", "count": share, "window": _WINDOW, "sources": sources, "limit_s": limit_s}


def _all(clients: Sequence[Part], questions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What they answer, all asked at the same time. Raises ``DidNotFinish``."""
    for part, question in zip(clients, questions, strict=True):
        part.begin(**question)
    answers = [part.answer() for part in clients]
    if late := [answer["unfinished"] for answer in answers if "unfinished" in answer]:
        raise DidNotFinish(f"{late[0]} (in {len(late)} of {len(clients)} processes)")
    return answers


def _settled_cpu_seconds(servers: Sequence[StoreProcess]) -> float:
    return sum(server.settled_cpu_seconds() for server in servers)
