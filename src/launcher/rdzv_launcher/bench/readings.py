"""Readings of a process and of the machine, shared by benchmarks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from rdzv_plugins.linux.processes import children_now, read_stat

_CPUCLOCK_SCHED = 2
"""The kernel's number for the clock of user and system time together, as its scheduler counts it."""


def peak_memory(pid: int) -> float | None:
    """The largest resident memory of one process so far, in MiB, without its children. None once it has ended.

    ``ru_maxrss`` does not show this: it is the largest over the process and every child that it waited for.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return None  # a zombie has no memory


def family_cpu_seconds(pid: int) -> float:
    """CPU time so far of a process and everything that lives below it, with what these have started and waited for."""
    pids_of = children_now()
    seconds, below = 0.0, [pid]
    while below:
        each = below.pop()
        stat = read_stat(each)
        if stat is not None:
            seconds += stat.cpu_s
            below += pids_of(each)
    return seconds


def exact_cpu_seconds(pid: int) -> float:
    """CPU time of one process so far, to the nanosecond, without its children.

    Threads that have ended are included; a thread that is running meanwhile is counted up to its last clock interrupt.
    Raises ``OSError`` once the process is gone.
    """
    return time.clock_gettime_ns(~pid << 3 | _CPUCLOCK_SCHED) / 1e9  # how clock_getcpuclockid(3) makes the number


def settled(cpu: Callable[[], float], limit_s: float) -> float:
    """``cpu()`` once it hardly grows any more: what is counted has nothing left to do. After the limit, as it is."""
    quiet_s, end = 0.02, time.monotonic() + limit_s
    before = cpu()
    while True:
        time.sleep(quiet_s)
        now = cpu()
        if now - before < quiet_s / 50 or time.monotonic() > end:
            return now
        before = now


def resident_memory(pid: int) -> float:
    """Resident memory of one process now, in MiB. Raises ``OSError`` once it is gone."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def forget_peak(pid: int) -> float:
    """Reset what ``peak_memory`` measures; returns it, in MiB: what is resident now, if the kernel allows that (as
    root, or for a process of one's own), otherwise the old peak.
    """
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        pass  # some containers do not have this file: the peak of the start stays
    return peak_memory(pid) or 0.0


def listen_overflows() -> int:
    """Connections lost on this machine so far to full accept queues."""
    names, values = (
        line.split() for line in Path("/proc/net/netstat").read_text().splitlines() if line.startswith("TcpExt:")
    )
    return int(dict(zip(names, values, strict=True))["ListenOverflows"])
