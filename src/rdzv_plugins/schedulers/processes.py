"""What the kernel knows of how this process was started, where variables alone cannot tell."""

from __future__ import annotations

import os

from rdzv_plugins.linux.process_stat import read_stat


def has_terminal() -> bool:
    """True if this process has a controlling terminal, as in an interactive shell. False where nobody can tell."""
    stat = read_stat(os.getpid())
    return stat is not None and stat.has_terminal


def is_of_the_container() -> bool:
    """True if this process comes from the command of its container, and not from ``kubectl exec``.

    Processes of ``exec`` have an ancestor whose parent is outside of the container, other than process 1. Where the
    containers of a pod share their processes nobody can tell: False.
    """
    pid = os.getpid()
    while pid > 1:
        stat = read_stat(pid)
        pid = 0 if stat is None else stat.parent
    return pid == 1
