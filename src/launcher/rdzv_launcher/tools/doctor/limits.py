"""What this machine, and the container around this process, allow."""

from __future__ import annotations

import os
import resource
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from rdzv_launcher.run.limits import require_temporary, write_a_page
from rdzv_launcher.tools.doctor.findings import Finding
from rdzv_plugins.elastic.endpoint_options import DEFAULT_PORT
from rdzv_plugins.linux.cgroups import cpu_quotas, directories_of, memory_of_groups

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
    if hard != resource.RLIM_INFINITY and hard < _FILES:
        yield Finding(
            "warning",
            "open files",
            f"a process may open {allowed}: a server of some thousand nodes or ranks needs one for each",
            "nofile in /etc/security/limits.conf, LimitNOFILE= of a systemd unit, --ulimit of a container.",
        )
    else:
        yield Finding("ok", "open files", f"{allowed} a process ({soft} until it asks for more, as rdzv-run does)")


def backlog() -> Iterator[Finding]:
    """How many connections may wait to be accepted."""
    somaxconn = int(Path("/proc/sys/net/core/somaxconn").read_text())
    if somaxconn < _BACKLOG:
        yield Finding(
            "warning",
            "somaxconn",
            f"only {somaxconn} connections may wait to be taken: nodes that come by the thousand try again",
            "sysctl -w net.core.somaxconn=4096 on the machine that serves the endpoint.",
        )
    else:
        yield Finding("ok", "somaxconn", f"{somaxconn} connections may wait to be taken")


def ports() -> Iterator[Finding]:
    """Whether the default port is free, and stays free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", DEFAULT_PORT))
        except OSError as error:
            yield Finding(
                "warning",
                "default port",
                f"{DEFAULT_PORT}, where nodes meet unless a port is given, is taken here ({error.strerror})",
                "Only the machine of the endpoint needs it: give another port there, the same on all nodes.",
            )
        else:
            yield Finding("ok", "default port", f"{DEFAULT_PORT} is free here")
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if first <= DEFAULT_PORT <= last:
        yield Finding(
            "warning",
            "ports of connections",
            f"{first} to {last} hold the default port {DEFAULT_PORT}, which any outgoing connection may take",
            f"sysctl -w net.ipv4.ip_local_reserved_ports={DEFAULT_PORT}, or an endpoint with another port.",
        )
    else:
        yield Finding("ok", "ports of connections", f"{first} to {last}")


def memory() -> Iterator[Finding]:
    """Memory that is left, of the machine and of the control group around this process."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    total = int(fields["MemTotal"].split()[0]) * 1024
    said = f"{free / _MIB:.0f} of {total / _MIB:.0f} MiB are available"
    for limit, used in memory_of_groups():
        if limit < total:
            free = min(free, max(0, limit - used))
            said += f"; a control group of this process may use {limit / _MIB:.0f} MiB and uses {used / _MIB:.0f}"
    if free < _LITTLE_MEMORY:
        yield Finding(
            "warning",
            "memory",
            f"{said}: a worker that imports torch needs about 250 MiB before it does anything",
            "Ask the scheduler for more, or end what uses it.",
        )
    else:
        yield Finding("ok", "memory", said)


def shared_memory() -> Iterator[Finding]:
    """/dev/shm: torch's data loaders pass tensors through it, gloo and NCCL buffers."""
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError as error:
        yield Finding(
            "warning",
            "/dev/shm",
            f"it cannot be used ({(error.strerror or str(error)).lower()}): data loaders with processes fail",
            "Mount a tmpfs there; of a container: --shm-size or an emptyDir of medium Memory.",
        )
        return
    said = f"{usage.free / _MIB:.0f} of {usage.total / _MIB:.0f} MiB are free"
    if usage.free <= _LITTLE_SHARED:
        yield Finding(
            "warning",
            "/dev/shm",
            f"{said}: data loaders with several processes end with a bus error when it is full",
            "Of a container: --shm-size=8g, or an emptyDir of medium Memory; else see what lies there.",
        )
    else:
        yield Finding("ok", "/dev/shm", said)


def processors() -> Iterator[Finding]:
    """The processors that this process may use."""
    allowed, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    said = f"{allowed} of {there} may be used"
    quotas = [quota for quota in cpu_quotas() if quota < allowed]
    if quotas:
        yield Finding(
            "warning",
            "processors",
            f"{said}, but the control group allows the time of {min(quotas):g}: programs that start a thread for "
            "each are slowed down",
            "Set OMP_NUM_THREADS (rdzv-run: 1 for each of several workers), or ask the scheduler for more.",
        )
    else:
        yield Finding("ok", "processors", said)


def processes() -> Iterator[Finding]:
    """How many processes and threads may be started."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    allowed = [each for each in (soft, hard) if each != resource.RLIM_INFINITY and os.getuid() != 0]
    allowed += _numbers("pids", "pids.max")
    if allowed and min(allowed) < _TASKS:
        yield Finding(
            "warning",
            "processes",
            f"{min(allowed)} processes and threads are allowed: a worker with a process group of gloo has four or more",
            "nproc in /etc/security/limits.conf, TasksMax= of a systemd unit, --pids-limit of a container.",
        )
    else:
        yield Finding("ok", "processes", f"{min(allowed) if allowed else 'any number'} of processes and threads")


def temporary() -> Iterator[Finding]:
    """The directory for temporary files, which also holds the sockets of a launch."""
    path = require_temporary()
    write_a_page(path)
    free = shutil.disk_usage(path).free
    if free < _LITTLE_DISK:
        yield Finding(
            "warning",
            "temporary files",
            f"only {free / _MIB:.0f} MiB are free in {path}",
            "Free some, or set TMPDIR to a directory with more.",
        )
    else:
        yield Finding("ok", "temporary files", f"{path}, {free / _MIB:.0f} MiB free")


def _numbers(controller: str, *names: str) -> list[int]:
    """The numbers in these files of the control groups around this process; "max" gives none."""
    found = []
    for place in directories_of(controller):
        for directory in (place.directory, *place.directory.parents):
            for name in names:
                try:
                    found.append(int((directory / name).read_text()))
                except (OSError, ValueError):
                    continue
    return found
