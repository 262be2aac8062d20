"""What the kernel knows about how this process was started, for cases that variables alone cannot decide."""

from __future__ import annotations

import os

from rdzv_plugins.linux.process_stat import read_stat


def has_terminal() -> bool:
    """True if this process has a controlling terminal, as in an interactive shell.

    False if that cannot be determined.
    """
    stat = read_stat(os.getpid())
    return stat is not None and stat.has_terminal


def is_of_the_container() -> bool:
    """True if this process comes from the command of its container, not from ``kubectl exec``.

    Processes of ``exec`` have an ancestor, other than process 1, whose parent is outside the container. If the
    containers of a pod share their processes, it cannot be determined: False.
    """
    pid = os.getpid()
    while pid > 1:
        stat = read_stat(pid)
        pid = 0 if stat is None else stat.parent
    return pid == 1
