"""A node's tests of itself: its disks, memory and processors. None of them needs another node.

What is compared with other nodes is measured in processor time if possible, so that a busy machine does not look slow;
slowness of the processors themselves, for example when they are too hot, still shows.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rdzv_plugins.interfaces import NodeCheck
from rdzv_plugins.system.cgroups import cpu_quotas, directories_of, memory_of_groups
from rdzv_plugins.timing import within

_MIB = 2**20
_DISK_S = 10.0
"""A disk that has not written a MiB within this many seconds is broken: a hanging file system does not say so."""
_WRITTEN = _MIB
_SLOW_DISK_S = 3.0
_LITTLE_DISK, _LITTLE_MEMORY, _LITTLE_SHARED = 100 * _MIB, 512 * _MIB, 64 * _MIB
_SHARED = "/dev/shm"
_TIMES = 5
_WORK = bytes(2 * _MIB)


def checks_of(names: Sequence[str], directories: Iterable[str]) -> list[NodeCheck]:
    """Run those of these checks that are a node's own; ``directories`` have to be writable. Takes half a second."""
    found: list[NodeCheck] = []
    if "disk" in names:
        found += [_disk(each) for each in dict.fromkeys([*directories, tempfile.gettempdir()])]
    if "memory" in names:
        found += [_memory(), _memory_speed(), *_shared_memory()]
    if "cpu" in names:
        found += [*_processors(), _processor_speed()]
    return found


def _disk(directory: str) -> NodeCheck:
    name = f"disk of {directory}"
    try:
        seconds, free = within(_DISK_S, lambda: _write(directory), "rdzv-preflight-disk")
    except TimeoutError:
        return NodeCheck(name, "broken", f"{directory} took no write within {_DISK_S:g} s")
    except OSError as error:
        return NodeCheck(name, "broken", f"cannot write to {directory}: {error.strerror or error}")
    rate = _WRITTEN / max(seconds, 1e-6)
    said = f"{rate / _MIB:.1f} MiB/s, {free / _MIB:.0f} MiB free"
    if free < _LITTLE_DISK:
        return NodeCheck(name, "warning", f"only {free / _MIB:.0f} MiB free in {directory}")
    if seconds > _SLOW_DISK_S:
        return NodeCheck(name, "warning", f"writing 1 MiB to {directory} takes {seconds:.1f} s")
    return NodeCheck(name, "ok", said)


def _write(directory: str) -> tuple[float, int]:
    """Seconds until a MiB has reached the disk, and the free space after that, in bytes."""
    directory = _there(directory)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        began = time.monotonic()
        file.write(os.urandom(_WRITTEN))
        os.fsync(file.fileno())
        seconds = time.monotonic() - began
    return seconds, shutil.disk_usage(directory).free


def _there(directory: str) -> str:
    """The directory, or the existing one in which it will be made."""
    path = os.path.abspath(directory)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _memory() -> NodeCheck:
    try:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return NodeCheck("memory", "ok", "the system does not report available memory")
    free = min([free, *(max(0, limit - used) for limit, used in memory_of_groups())])
    said = f"{free / _MIB:.0f} MiB available to this process"
    return NodeCheck("memory", "warning" if free < _LITTLE_MEMORY else "ok", said)


def _memory_speed() -> NodeCheck:
    source = bytearray(16 * _MIB)
    best = _best(lambda: len(bytes(source)))
    return NodeCheck("memory speed", "ok", f"{best / 2**30:.1f} GiB/s", best / 2**30, "GiB/s")


def _shared_memory() -> Iterable[NodeCheck]:
    if not sys.platform.startswith("linux"):
        return
    try:
        with tempfile.TemporaryFile(dir=_SHARED, buffering=0) as file:
            file.write(b"\0" * 4096)
        free = shutil.disk_usage(_SHARED).free
    except OSError as error:
        why = f"not usable by data loaders and collectives: {error.strerror or error}"
        yield NodeCheck(_SHARED, "broken", why)
        return
    yield NodeCheck(_SHARED, "warning" if free < _LITTLE_SHARED else "ok", f"{free / _MIB:.0f} MiB free")


def _processors() -> Iterable[NodeCheck]:
    if not hasattr(os, "sched_getaffinity"):
        return
    allowed = float(len(os.sched_getaffinity(0)))
    share = min([allowed, *cpu_quotas()])
    yield NodeCheck("processors", "ok", f"{share:g} usable", share)


def _processor_speed() -> NodeCheck:
    before = _times_throttled()
    best = _best(lambda: (zlib.crc32(_WORK), len(_WORK))[1])
    throttled = _times_throttled() - before
    said = f"{best / 2**30:.2f} GiB/s (checksum)"
    if throttled > 0:
        said += f"; throttled {throttled} times by its control group"
    return NodeCheck("processor speed", "warning" if throttled > 0 else "ok", said, best / 2**30, "GiB/s")


def _best(work: Callable[[], int]) -> float:
    """Bytes per second of this thread's processor time, in the best of several runs."""
    rates = []
    for _ in range(_TIMES):
        began = time.thread_time()
        done = work()
        rates.append(done / max(time.thread_time() - began, 1e-6))
    return max(rates)


def _times_throttled() -> int:
    """How often the control groups around this process were throttled because of their quota."""
    found = 0
    for place in directories_of("cpu"):
        with contextlib.suppress(OSError, ValueError, StopIteration):
            lines = (place.directory / "cpu.stat").read_text().splitlines()
            found = max(found, int(next(line for line in lines if line.startswith("nr_throttled ")).split()[1]))
    return found
