"""Finds the children of a process.

Most kernels keep a list of them (CONFIG_PROC_CHILDREN): reading it costs the same however many processes there are on
the machine. If there are no such lists, every process is asked for its parent.
"""

from __future__ import annotations

import os

from rdzv_plugins.linux.process_stat import read_stat

TYPE_CHECKING = False  # as in ``rdzv_plugins``
if TYPE_CHECKING:
    from collections.abc import Callable

LISTED = os.path.exists("/proc/thread-self/children")
"""Whether this kernel has the lists."""


def all_pids() -> list[int]:
    """The pids of all visible processes of this machine."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def children_now() -> Callable[[int], list[int]]:
    """Return a function from a pid to the pids of its children, to be used at once.

    These include children that have ended and have not been waited for. Processes that start, end or lose their parent
    in the meantime may be missing; to find all, look again until there is nothing new.
    """
    if LISTED:
        return _listed
    found: dict[int, list[int]] = {}
    for pid in all_pids():
        stat = read_stat(pid)
        if stat is not None:
            found.setdefault(stat.parent, []).append(pid)
    return lambda pid: found.get(pid, [])


def _listed(pid: int) -> list[int]:
    """The children listed for each thread: those it has started, and those of threads that have ended."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
        except OSError:  # it has just ended
            continue
    return found
