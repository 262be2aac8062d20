"""Who the children of a process are.

Most kernels keep a list of them (CONFIG_PROC_CHILDREN): to read it costs the same however many processes there are on
the machine. Where there are no such lists, every process is asked for its parent.
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
    """The pids of every process of this machine that can be seen."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def children_now() -> Callable[[int], list[int]]:
    """A function from a pid to those of its children, to be used at once.

    Children that have ended and are not waited for are among them. What is started or ends meanwhile may be missing,
    and so may what loses its parent; who has to find all looks again until there is nothing new.
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
    """Each thread has those that it has started, and those of threads that have ended."""
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
