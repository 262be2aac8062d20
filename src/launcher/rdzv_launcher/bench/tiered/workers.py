"""Real workers for ``rdzv bench tiered``: torch's ``init_process_group`` with gloo, through real proxies.

Run as a program it plays the workers of one run: torch is imported once, and each rank is a fork that goes to its node.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from rdzv_launcher.bench.method.points import Point
from rdzv_launcher.bench.method.turns import DidNotFinish, Turns
from rdzv_launcher.bench.processes.child import Child, NoAnswer, module_command, with_parent
from rdzv_launcher.bench.processes.forks import Fork
from rdzv_launcher.bench.processes.hosts import Machine, Network, inside
from rdzv_launcher.bench.tiered.cases import new_requests
from rdzv_launcher.bench.tiered.parts import TieredParts
from rdzv_plugins.errors import RdzvError

ROUTES = ("direct", "tiered")
"""The routes that torch's own client can take."""
_START_LIMIT_S = 120.0
"""How long importing torch may take."""


@dataclass(frozen=True)
class WorkersInit:
    """One run: ``init_process_group`` of all workers."""

    wall_s: float
    """The time of the slowest worker."""
    root: dict[str, int]
    """Requests at the root, by name."""
    connections: int
    """The most connections that the root had at once."""


def measure(network: Network, per_node: int, route: str, limit_s: float) -> WorkersInit:
    """One run: ``per_node`` workers on each node of the network.

    Raises ``DidNotFinish``, and ``RdzvError`` if a worker has failed.
    """
    with TieredParts(network, network.nodes, per_node=per_node, delay_s=0.0) as parts:
        if route != "direct":
            parts.open_proxies(unix=False, fanout=0)
        task = {
            "per_node": per_node,
            "nodes": [asdict(node) for node in network.nodes],
            "stores": [where for where, _ in parts.places],
            "interface": network.interface,
            "limit_s": limit_s,
        }
        seconds = _play(task, limit_s)
        stats = parts.root.question()
        return WorkersInit(max(seconds), new_requests(stats["requests"], {}), stats["connections"]["peak"])


def as_points(case: str, nodes: int, turns: Turns[WorkersInit]) -> list[Point]:
    """Time, and requests at the root, by route."""
    return [
        Point(
            "tiered",
            case,
            route,
            figure,
            title,
            unit,
            samples,
            nodes=nodes,
            reference=route == "direct",
            unfinished=turns.unfinished.get(route, ""),
        )
        for figure, title, unit, by_route in (
            ("wall", "wall time", "s", {r: tuple(i.wall_s for i in each) for r, each in turns.samples.items()}),
            (
                "root_requests",
                "requests at the root",
                "requests",
                {r: tuple(float(sum(i.root.values())) for i in each) for r, each in turns.samples.items()},
            ),
        )
        for route, samples in by_route.items()
    ]


def _play(task: dict[str, Any], limit_s: float) -> list[float]:
    """How long each worker needed for ``init_process_group``, in seconds."""
    command = module_command("tiered.workers", json.dumps(task))
    with Child("the process of torch's workers", command, end_limit_s=0, before=with_parent()) as workers:
        try:
            times: list[float] = json.loads(workers.read(limit_s + _START_LIMIT_S))
        except NoAnswer:
            raise DidNotFinish(f"not within {limit_s + _START_LIMIT_S:g} s") from None
    return times


def _work(rank: int, task: dict[str, Any], connection: socket.socket) -> None:
    """Be a worker; it says how long ``init_process_group`` took, in seconds."""
    import torch
    import torch.distributed as dist

    node, world = rank // task["per_node"], len(task["nodes"]) * task["per_node"]
    host, _, port = task["stores"][node].rpartition(":")
    os.environ |= {
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # no rank is to serve a store
        "GLOO_SOCKET_IFNAME": task["interface"],
    }
    with inside(Machine(**task["nodes"][node])):
        connection.recv(1)  # all begin together
        start = time.perf_counter()
        dist.init_process_group("gloo", timeout=timedelta(seconds=task["limit_s"]))
        seconds = time.perf_counter() - start
        dist.barrier()
        total = torch.tensor([rank])
        dist.all_reduce(total)
        dist.destroy_process_group()
    if int(total) != world * (world - 1) // 2:
        raise RdzvError(f"rank {rank}: all_reduce gave {int(total)}")
    connection.sendall(str(seconds).encode())


def main() -> None:
    """Play all workers, and print their times."""
    import torch.distributed  # noqa: F401

    task = json.loads(sys.argv[1])
    ranks: list[Fork] = []
    for rank in range(len(task["nodes"]) * task["per_node"]):
        ranks.append(Fork(partial(_work, rank, task), ranks))
    for each in ranks:
        each.connection.sendall(b"g")
    times = [each.connection.recv(64) for each in ranks]
    codes = [each.reap() for each in ranks]
    if any(codes):
        sys.exit("torch's workers have failed")
    print(json.dumps([float(text) for text in times]), flush=True)


if __name__ == "__main__":
    main()
