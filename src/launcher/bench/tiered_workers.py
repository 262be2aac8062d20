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
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from launcher.bench.measure import summarise
from launcher.bench.tiered_cases import new_requests
from launcher.bench.tiered_network import Machine, Network, inside
from launcher.bench.tiered_parts import Parts
from rdzv_plugins.errors import RdzvError

_START_LIMIT_S = 120.0
"""For importing torch."""


def measure_workers(
    network: Network, per_node: int, routes: Sequence[str], *, repeats: int, limit_s: float
) -> dict[str, Any]:
    """``per_node`` workers on each node of the network, by each route that torch's own client can take."""
    routes = [route for route in routes if route != "tiered-unix"]
    runs: dict[str, list[dict[str, Any]]] = {route: [] for route in routes}
    for _ in range(repeats):
        for route in routes:
            runs[route].append(_measure(network, per_node, route, limit_s))
    return {
        "nodes": len(network.nodes),
        "ranks": len(network.nodes) * per_node,
        "routes": {
            route: {
                "init_s": summarise([each["init_s"] for each in samples]),
                "root_requests": sum(samples[-1]["root"].values()),
                "root_by_name": samples[-1]["root"],
                "connections": samples[-1]["connections"],
            }
            for route, samples in runs.items()
        },
    }


def _measure(network: Network, per_node: int, route: str, limit_s: float) -> dict[str, Any]:
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
        return {
            "init_s": max(seconds),
            "root": new_requests(stats["requests"], {}),
            "connections": stats["connections"]["peak"],
        }


def _play(task: dict[str, Any], limit_s: float) -> list[float]:
    """What each worker needed for ``init_process_group``, in seconds. Raises ``RdzvError`` where one has failed."""
    command = [sys.executable, "-m", "launcher.bench.tiered_workers", json.dumps(task)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as workers:
        try:
            stdout, stderr = workers.communicate(timeout=limit_s + _START_LIMIT_S)
        except BaseException as error:
            os.killpg(workers.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise RdzvError(f"torch's workers have not started within {limit_s + _START_LIMIT_S:g} s") from None
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
    ranks = []
    for rank in range(len(task["nodes"]) * task["per_node"]):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
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
