"""What a launch needs of this machine, checked before anything starts: files, processes, directories."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import tempfile
from pathlib import Path

from rdzv_launcher.console import NO_SPACE
from rdzv_plugins.errors import LimitTooLow, UsageError

logger = logging.getLogger(__name__)

_FILES_OF_AGENT = 36
"""Files beyond those open before: connections, stores, event loops and pipes, at the most of any built-in backend."""
_FILES_OF_WORKER = 6
"""Open files for each worker: its pipes, logs and process, and its connections to a store that this node serves."""
_THREADS_OF_AGENT = 8
"""Threads of an agent and its supervisor, at the least of any built-in backend."""
_THREADS_OF_WORKER = 4
"""Threads of a worker with a gloo process group. Each counts like a process."""
_LITTLE = 100 * 2**20
_PAGE = b"\0" * 4096


def require_files(workers: int) -> str:
    """Raise the soft limit if ``workers`` of this node need that; returns what was found.

    Raises ``LimitTooLow`` if the hard limit is too low.
    """
    try:
        needed = len(os.listdir("/proc/self/fd")) + _FILES_OF_AGENT + _FILES_OF_WORKER * workers
    except OSError as error:
        raise LimitTooLow(
            f"cannot read /proc ({(error.strerror or str(error)).lower()}), where rdzv-run finds its workers",
            remedy="Mount it: mount -t proc proc /proc.",
        ) from None
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    except OSError as error:
        return f"up to {needed} open files are needed; the limit is not known: {error.strerror}"
    found = f"up to {needed} open files are needed, {'any number' if hard == resource.RLIM_INFINITY else hard} allowed"
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return found
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError):  # beyond the hard limit
        raise LimitTooLow(
            f"this node may open {soft} files at once, and needs up to {needed} for {workers} worker"
            f"{'s' if workers > 1 else ''}",
            remedy=f"Allow more: ulimit -n {max(1024, needed)}; for good, nofile in /etc/security/limits.conf or "
            "LimitNOFILE= of a systemd unit.",
        ) from None
    return found


def require_processes(workers: int) -> str:
    """Raise the soft limit if ``workers`` of this node need that; returns what was found.

    Raises ``LimitTooLow`` if they cannot be started.
    """
    needed = _THREADS_OF_AGENT + _THREADS_OF_WORKER * workers
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    except OSError as error:
        return f"at least {needed} processes and threads are needed; the limit is not known: {error.strerror}"
    if os.getuid() == 0 or soft == resource.RLIM_INFINITY or soft - _threads() >= needed:  # it does not bind root
        return f"at least {needed} processes and threads are needed"
    used = _threads_of(os.getuid())
    if soft - used < needed and hard != soft and (hard == resource.RLIM_INFINITY or hard - used >= needed):
        soft = used + needed
        resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
    if soft - used < needed:
        raise LimitTooLow(
            f"this user may have {soft} processes and threads at once and has {used}; the agent and {workers} worker"
            f"{'s' if workers > 1 else ''} need at least {needed} more",
            remedy=f"Allow more: ulimit -u {max(4096, used + needed)}; for good, nproc in /etc/security/limits.conf or "
            "TasksMax= of a systemd unit.",
        )
    return f"{soft - used} more processes and threads are allowed, at least {needed} needed"


def _threads() -> int:
    """The number of threads of all users together, which is cheap to read."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


def _threads_of(user: int) -> int:
    found = 0
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}").st_uid == user:
                found += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:  # it has just ended
            continue
    return found


def require_temporary() -> str:
    """The directory for temporary files. Raises ``LimitTooLow`` if none can take any."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        raise LimitTooLow(
            f"cannot write temporary files: {error.strerror}",
            remedy="Free some space there, or name another directory: TMPDIR=DIRECTORY.",
        ) from None


def write_a_page(directory: str) -> None:
    """Find out by trying whether there is room: a quota shows nowhere else. Leaves nothing. Raises ``OSError``."""
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:  # it has no name, or not for long
        file.write(_PAGE)


def require_log_dir(path: str) -> str:
    """The directory ``path``, or the one in which it would be created. Leaves nothing there.

    Warns if there is little space. Raises ``UsageError`` if nothing can be written, and ``LimitTooLow`` if it is full.
    """
    try:
        there = os.path.abspath(path)
    except FileNotFoundError:
        raise UsageError(
            f"--log-dir={path}: the directory in which this command was started is gone",
            remedy="Start it in one that exists, or give an absolute path.",
        ) from None
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    try:
        write_a_page(there)
        free = shutil.disk_usage(there).free
    except OSError as error:
        kind = LimitTooLow if error.errno in NO_SPACE else UsageError
        raise kind(
            f"--log-dir={path}: cannot write in {there}: {(error.strerror or str(error)).lower()}",
            remedy="Give a directory in which this user may write, with space left.",
        ) from None
    if free < _LITTLE:
        logger.warning("--log-dir=%s: only %.0f MiB are free there", path, free / 2**20)
    return there
