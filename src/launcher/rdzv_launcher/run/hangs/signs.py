"""Signs of life of a worker, as counted by the kernel: cheap to read, and nothing runs in the worker. Linux (/proc)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from rdzv_launcher.run.stacks import processes
from rdzv_plugins.linux.process_stat import ProcessStat, read_stat

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class Signs(Struct, frozen=True):
    """What had been counted for one process at some moment. Times are in seconds."""

    at: float
    """The moment of the count (monotonic)."""
    state: str
    """One letter, as in /proc/PID/stat."""
    born: int
    """When it was started, in ticks: another process with the same pid has another value."""
    main_s: float
    """The processor time that the main thread got, or wanted while others had it."""
    all_s: float
    """The processor time of all threads, and of children that have been waited for."""
    faults: int
    """Pages that it had to wait for, from a file or from swap: a kind of reading that is not among the bytes."""
    moved: int
    """Bytes that it has read and written through files and pipes; 0 if that may not be seen."""


def read_signs(pid: int, asked: Path | None = None) -> Signs | None:
    """The signs of a process; None if it has ended.

    ``asked`` is the directory to which workers write when an agent asks for their stacks; that is not a sign of life.
    """
    stat = read_stat(pid)
    if stat is None or not stat.lives:
        return None
    all_s = _all_s(stat)
    main_s = _main_s(pid, all_s)
    return Signs(time.monotonic(), stat.state, int(stat.started), main_s, all_s, stat.major_faults, _moved(pid, asked))


def below_s(pid: int, pids_of: Callable[[int], list[int]]) -> float:
    """The processor time that all processes below one got or wanted, in seconds. ``pids_of``: like ``children_now``."""
    total = 0.0
    for each in processes.below(pid, pids_of):
        if stat := read_stat(each):
            all_s = _all_s(stat)
            total += max(all_s, _main_s(each, all_s))
    return total


def _all_s(stat: ProcessStat) -> float:
    return (stat.cpu_ticks + stat.waited_ticks) * _TICK_S


def _main_s(pid: int, otherwise: float) -> float:
    """The time of the main thread, including its time in the queue; ``otherwise`` if the kernel does not say."""
    schedstat = processes.read(pid, "schedstat").split()
    return sum(map(int, schedstat[:2])) / 1e9 if len(schedstat) == 3 else otherwise


def _moved(pid: int, asked: Path | None) -> int:
    lines = processes.read(pid, "io").splitlines()[:2]  # rchar, wchar
    if not lines:
        return 0
    try:
        written = (asked / str(pid)).stat().st_size if asked is not None else 0
    except OSError:  # it writes none
        written = 0
    return sum(int(line.rpartition(" ")[2]) for line in lines) - written
