"""What the kernel knows of how this process was started, where variables alone cannot tell."""

from __future__ import annotations

import os

_PARENT, _TERMINAL = 1, 4
"""Where they are in ``/proc/PID/stat``, counted after the name: ppid, tty_nr. Source: proc_pid_stat(5)."""


def has_terminal() -> bool:
    """True if this process has a controlling terminal, as in an interactive shell. False where nobody can tell."""
    return _stat(os.getpid(), _TERMINAL) != 0


def is_of_the_container() -> bool:
    """True if this process comes from the command of its container, and not from ``kubectl exec``.

    Processes of ``exec`` have an ancestor whose parent is outside of the container, other than process 1. Where the
    containers of a pod share their processes nobody can tell: False.
    """
    pid = os.getpid()
    while pid > 1:
        pid = _stat(pid, _PARENT)
    return pid == 1


def _stat(pid: int, field: int) -> int:
    """A number out of ``/proc/PID/stat``; 0 where it cannot be read."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return int(stat.read().rpartition(")")[2].split()[field])
    except (OSError, IndexError, ValueError):
        return 0
