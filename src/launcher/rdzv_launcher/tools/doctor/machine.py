"""What this machine, and the container around this process, allow; its clock; workers whose launcher is gone. Linux."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rdzv_launcher.run.machine import require_temporary, write_a_page
from rdzv_launcher.run.stacks.processes import environment, name_of
from rdzv_launcher.tools.doctor.checks import Finding, judged
from rdzv_plugins.elastic.options import DEFAULT_PORT
from rdzv_plugins.plain_text import some
from rdzv_plugins.system.cgroups import cpu_quotas, directories_of, memory_of_groups
from rdzv_plugins.system.processes import all_pids, read_stat

_MIB = 2**20
_FILES = 4096
_BACKLOG = 1024
_LITTLE_SHARED = 64 * _MIB
"""The size that a container gets unless it asks for more."""
_LITTLE_MEMORY, _LITTLE_DISK = 512 * _MIB, 100 * _MIB
_TASKS = 1024


def files() -> Iterator[Finding]:
    """How many files and connections a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = "any number" if hard == resource.RLIM_INFINITY else str(hard)
    few = hard != resource.RLIM_INFINITY and hard < _FILES
    yield judged(
        "open files",
        f"{allowed} per process (soft limit {soft}, which rdzv-run raises)",
        few and f"limit of {allowed} per process: a server needs one for each of its nodes or ranks",
        "Raise it: nofile in /etc/security/limits.conf, LimitNOFILE= in a systemd unit, --ulimit for a container.",
    )


def backlog() -> Iterator[Finding]:
    """How many connections may wait to be accepted."""
    somaxconn = int(Path("/proc/sys/net/core/somaxconn").read_text())
    few = somaxconn < _BACKLOG
    yield judged(
        "somaxconn",
        f"{somaxconn} connections may wait to be accepted",
        few and f"only {somaxconn} connections may wait to be accepted: thousands of nodes at once have to retry",
        "On the machine that serves the endpoint: sysctl -w net.core.somaxconn=4096.",
    )


def ports() -> Iterator[Finding]:
    """Whether the default port is free, and stays free."""
    taken = ""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", DEFAULT_PORT))
        except OSError as error:
            taken = f"{DEFAULT_PORT}, the default port of the endpoint, is in use here ({error.strerror})"
    yield judged(
        "default port",
        f"{DEFAULT_PORT} is free here",
        taken,
        "Only the machine that serves the endpoint needs it. There, choose another port, the same on all nodes.",
    )
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    holds = f"{first} to {last} include the default port {DEFAULT_PORT}, so any outgoing connection may take it"
    yield judged(
        "ports of connections",
        f"{first} to {last}",
        first <= DEFAULT_PORT <= last and holds,
        f"Reserve it (sysctl -w net.ipv4.ip_local_reserved_ports={DEFAULT_PORT}), or choose another port.",
    )


def memory() -> Iterator[Finding]:
    """Memory that is left, of the machine and of the control group around this process."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    total = int(fields["MemTotal"].split()[0]) * 1024
    said = f"{free / _MIB:.0f} of {total / _MIB:.0f} MiB available"
    for limit, used in memory_of_groups():
        if limit < total:
            free = min(free, max(0, limit - used))
            said += f"; its control group is limited to {limit / _MIB:.0f} MiB and uses {used / _MIB:.0f}"
    little = free < _LITTLE_MEMORY and f"{said}: importing torch alone takes a worker about 250 MiB"
    yield judged("memory", said, little, "Request more from the scheduler, or end the processes that use it.")


def shared_memory() -> Iterator[Finding]:
    """/dev/shm: torch's data loaders pass tensors through it, gloo and NCCL buffers."""
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError as error:
        yield Finding(
            "/dev/shm",
            f"not usable ({(error.strerror or str(error)).lower()}): data loaders with worker processes will fail",
            "warning",
            "Mount a tmpfs there; for a container: --shm-size, or an emptyDir with medium Memory.",
        )
        return
    said = f"{usage.free / _MIB:.0f} of {usage.total / _MIB:.0f} MiB free"
    yield judged(
        "/dev/shm",
        said,
        usage.free <= _LITTLE_SHARED
        and f"{said}: when it is full, data loaders with worker processes die of a bus error",
        "For a container: --shm-size=8g, or an emptyDir with medium Memory. Otherwise delete leftover files there.",
    )


def processors() -> Iterator[Finding]:
    """The processors that this process may use."""
    allowed, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    said = f"{allowed} of {there} usable"
    quotas = [quota for quota in cpu_quotas() if quota < allowed]
    slow = "programs with one thread per processor will be throttled"
    yield judged(
        "processors",
        said,
        bool(quotas) and f"{said}, but the control group limits them to the time of {min(quotas):g}: {slow}",
        "Set OMP_NUM_THREADS (rdzv-run sets 1 if a node has several workers), or request more from the scheduler.",
    )


def processes() -> Iterator[Finding]:
    """How many processes and threads may be started."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    allowed = [each for each in (soft, hard) if each != resource.RLIM_INFINITY and os.getuid() != 0]
    for place in directories_of("pids"):
        for directory in (place.directory, *place.directory.parents):
            with suppress(OSError, ValueError):  # there is none, or it is "max"
                allowed.append(int((directory / "pids.max").read_text()))
    most = min(allowed, default=None)
    few = most is not None and most < _TASKS
    yield judged(
        "processes",
        f"{'any number' if most is None else most} of processes and threads allowed",
        few and f"only {most} processes and threads allowed: a worker with a gloo process group has at least four",
        "Raise it: nproc in /etc/security/limits.conf, TasksMax= in a systemd unit, --pids-limit for a container.",
    )


def temporary() -> Iterator[Finding]:
    """The directory for temporary files, which also holds the sockets of a launch."""
    path = require_temporary()
    write_a_page(path)
    free = shutil.disk_usage(path).free
    little = free < _LITTLE_DISK and f"only {free / _MIB:.0f} MiB free in {path}"
    fine = f"{path}, {free / _MIB:.0f} MiB free"
    yield judged("temporary files", fine, little, "Free some space, or set TMPDIR to a directory with more.")


_MAXERROR_AT, _STATUS_AT, _SIZE = 24, 40, 256
"""Offsets in ``struct timex`` with 8-byte longs; the size is larger than the struct."""
_UNSYNCHRONISED = 0x40


def clock() -> Iterator[Finding]:
    """What the kernel says about the clock. Source: adjtimex(2)."""
    state = ctypes.create_string_buffer(_SIZE)
    if ctypes.sizeof(ctypes.c_long) != 8 or ctypes.CDLL(None).adjtimex(state) < 0:
        yield Finding("clock", "the kernel does not report its state", "skipped")
        return
    (status,) = struct.unpack_from("i", state, _STATUS_AT)
    if status & _UNSYNCHRONISED:
        yield Finding(
            "clock",
            "not synchronised, according to the kernel: log times of different nodes will not match (rdzv-run itself "
            "never compares clocks of two nodes)",
            "warning",
            "Start chrony or systemd-timesyncd; for a container, on its host.",
        )
        return
    (microseconds,) = struct.unpack_from("l", state, _MAXERROR_AT)
    yield Finding("clock", f"synchronised, error at most {microseconds / 1000:.0f} ms")


_TAKES_ORPHANS = ("systemd", "init", "tini", "dumb-init", "docker-init", "catatonit")
"""Names of the first process if it is not a launcher itself, as it may be in a container."""
_SHOWN = 10


def leftovers() -> Iterator[Finding]:
    """Workers of any launcher that sets torchrun's variables: the jobs here, and the workers that nobody waits for."""
    workers = {pid: run for pid in all_pids() if (run := _run_of(pid)) is not None}
    left = {pid: run for pid, run in workers.items() if _is_left(pid, workers)}
    runs = sorted({run for pid, run in workers.items() if pid not in left})
    left = {pid: run for pid, run in left.items() if run not in runs}  # otherwise a worker may have started it to stay
    yield Finding("jobs", f"workers of run {', '.join(runs)} are running" if runs else "none running here")
    if not left:
        yield Finding("leftover processes", "none")
        return
    shown = some((f"{pid} (run {run})" for pid, run in sorted(left.items())), _SHOWN)
    yield Finding(
        "leftover processes",
        f"{len(left)} from jobs whose launcher is gone: {shown}; they hold memory, devices and ports",
        "wrong",
        f"Check them, then end them: kill {' '.join(map(str, sorted(left)[:_SHOWN]))}",
    )


def _run_of(pid: int) -> str | None:
    """The run whose worker it is, or whose worker started it; None if there is none."""
    run = environment(pid).get("TORCHELASTIC_RUN_ID")
    stat = read_stat(pid)
    return run if stat is not None and stat.lives else None


def _is_left(pid: int, workers: dict[int, str]) -> bool:
    """Whether the process above it and its siblings is the one that takes in orphans, and did not start it."""
    while (stat := read_stat(pid)) is not None:
        parent = stat.parent
        if parent not in workers:
            return _takes_orphans(parent)
        pid = parent
    return False


def _takes_orphans(pid: int) -> bool:
    """Whether processes below it may have lost their own parent; False for an unknown first process."""
    if pid == 1:
        return os.path.basename(name_of(pid)) in _TAKES_ORPHANS
    stat = read_stat(pid)
    return stat is not None and os.path.basename(name_of(pid)) == "systemd" and stat.session == pid
