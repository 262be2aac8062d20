"""Real workers for ``rdzv bench tiered``: ``init_process_group`` of torch with gloo, through real proxies.

Run as a program it plays the workers of one run: torch is imported once, and each rank is a fork that goes to its
node.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from launcher.bench.ends import with_parent
from launcher.bench.points import Point
from launcher.bench.tiered_cases import new_requests
from launcher.bench.tiered_network import Machine, Network, inside
from launcher.bench.tiered_parts import Parts
from launcher.bench.turns import DidNotFinish, Turns
from rdzv_plugins.errors import RdzvError

ROUTES = ("direct", "tiered")
"""Those that torch's own client can take."""
_START_LIMIT_S = 120.0
"""For importing torch."""


@dataclass(frozen=True)
class Init:
    """One run: all workers' ``init_process_group``."""

    wall_s: float
    """Of the slowest."""
    root: dict[str, int]
    """Requests at the root, by name."""
    connections: int
    """At the root, the most at once."""


def measure(network: Network, per_node: int, route: str, limit_s: float) -> Init:
    """One run: ``per_node`` workers on each node of the network.

    Raises ``DidNotFinish``, and ``RdzvError`` where a worker has failed.
    """
    with Parts(network, network.nodes, per_node=per_node, delay_s=0.0) as parts:
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
        stats = parts.root.ask({})
        return Init(max(seconds), new_requests(stats["requests"], {}), stats["connections"]["peak"])


def as_points(case: str, nodes: int, turns: Turns[Init]) -> list[Point]:
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
    """What each worker needed for ``init_process_group``, in seconds."""
    command = [sys.executable, "-m", "launcher.bench.tiered_workers", json.dumps(task)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=with_parent(),
    ) as workers:
        try:
            stdout, stderr = workers.communicate(timeout=limit_s + _START_LIMIT_S)
        except BaseException as error:
            os.killpg(workers.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise DidNotFinish(f"not within {limit_s + _START_LIMIT_S:g} s") from None
            raise
    if workers.returncode != 0:
        raise RdzvError(f"torch's workers failed: {stderr.strip()[-1000:]}")
    times: list[float] = json.loads(stdout)
    return times


def _work(rank: int, task: dict[str, Any], gate: int) -> float:
    """A worker; returns how long ``init_process_group`` took, in seconds."""
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
        os.read(gate, 1)  # until it is closed
        start = time.perf_counter()
        dist.init_process_group("gloo", timeout=timedelta(seconds=task["limit_s"]))
        seconds = time.perf_counter() - start
        dist.barrier()
        total = torch.tensor([rank])
        dist.all_reduce(total)
        dist.destroy_process_group()
    if int(total) != world * (world - 1) // 2:
        raise RdzvError(f"rank {rank}: all_reduce gave {int(total)}")
    return seconds


def main() -> None:
    """Play all workers, and print their times."""
    import torch.distributed  # noqa: F401

    task = json.loads(sys.argv[1])
    gate_out, gate_in = os.pipe()
    ranks, ends_with_me = [], with_parent()
    for rank in range(len(task["nodes"]) * task["per_node"]):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ends_with_me()
                os.close(gate_in)
                os.write(writing, str(_work(rank, task, gate_out)).encode())
                code = 0
            except BaseException as error:
                print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(code)
        os.close(writing)
        ranks.append((pid, reading))
    os.close(gate_in)
    times = [os.read(reading, 64) for _, reading in ranks]
    if any(os.waitpid(pid, 0)[1] for pid, _ in ranks):
        sys.exit(1)
    print(json.dumps([float(text) for text in times]), flush=True)


if __name__ == "__main__":
    main()
