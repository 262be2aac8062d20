"""Readings of a process and of the machine that benchmarks share."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def peak_memory(pid: int) -> float | None:
    """Largest resident memory of one process so far, in MiB, its children left out. None once it has ended.

    ``ru_maxrss`` does not tell: it is the largest over the process and every child that it waited for.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return None  # a zombie has no memory


def cpu_seconds(pid: int) -> float:
    """CPU time of one process so far, user and system, its children left out; 0 once it has gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def exact_cpu_seconds(pid: int) -> float:
    """CPU time of the living threads of one process so far, to the nanosecond where ``cpu_seconds`` counts ticks.

    A thread that runs on while it is looked at is counted up to its last interrupt by the clock.
    Raises ``OSError`` once the process has gone.
    """
    schedstats = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(stat.read_text().split()[0]) for stat in schedstats) / 1e9


def resident_memory(pid: int) -> float:
    """Resident memory of one process now, in MiB. Raises ``OSError`` once it has gone."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def listen_losses() -> tuple[int, int]:
    """Connections that full accept queues cost this machine so far: ``ListenOverflows`` and ``ListenDrops``."""
    names, values = (
        line.split() for line in Path("/proc/net/netstat").read_text().splitlines() if line.startswith("TcpExt:")
    )
    counters = dict(zip(names, values, strict=True))
    return int(counters["ListenOverflows"]), int(counters["ListenDrops"])
