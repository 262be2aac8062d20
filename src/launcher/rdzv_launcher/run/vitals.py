"""What a node's agent does and what its workers use, for those who watch the job: read only when somebody asks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from rdzv_launcher.run.agent.decisions import Decisions
from rdzv_launcher.run.stacks import processes
from rdzv_launcher.run.stacks.node import Node, Worker
from rdzv_plugins.linux.children import children_now
from rdzv_plugins.linux.process_stat import ProcessStat, read_stat

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def vitals(node: Node, decisions: Decisions) -> dict[str, Any]:
    """The figures, as JSON. Any thread may call it; takes about a millisecond for each worker.

    ``cpu_s`` and ``memory_bytes`` are those of a worker with everything that it has started. Memory that processes
    share counts once for each of them. ``at`` is this machine's clock: its increase between two answers is the time
    between them.
    """
    pids_of = children_now()
    return {
        "stage": decisions.stage,
        "restarts": decisions.restarts_used,
        "starts": decisions.generation,
        "at": time.monotonic(),
        "workers": [each for worker in node.workers if (each := _worker(worker, pids_of)) is not None],
    }


def _worker(worker: Worker, pids_of: Callable[[int], list[int]]) -> dict[str, Any] | None:
    """The figures of one worker; None if it has ended."""
    own = read_stat(worker.pid)
    if own is None or not own.lives:
        return None
    pids = [worker.pid, *processes.below(worker.pid, pids_of)]
    stats = [own, *(each for each in map(read_stat, pids[1:]) if each is not None)]
    return {
        "rank": worker.rank,
        "local_rank": worker.local_rank,
        "pid": worker.pid,
        "state": own.state,
        "cpu_s": sum(map(_cpu_s, stats)),
        "memory_bytes": sum(map(_memory, pids)),
    }


def _cpu_s(stat: ProcessStat) -> float:
    return (stat.cpu_ticks + stat.waited_ticks) * _TICK_S


def _memory(pid: int) -> int:
    fields = processes.read(pid, "statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0
