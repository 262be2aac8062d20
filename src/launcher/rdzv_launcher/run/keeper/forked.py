"""What a process lets go of after being forked in the middle of somebody else's program."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection


def let_go_of_handlers() -> None:
    """Reset signals that have a Python handler to their default action; ignored signals stay ignored."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def close_all_but(kept: Collection[int]) -> None:
    """Close all descriptors except the standard ones and those in ``kept``.

    If somebody has started a thread in this fork, as a debugger does, the descriptors stay in use, for nothing: their
    owner may close them later, and would close what has their numbers by then.
    """
    null = os.open(os.devnull, os.O_RDWR) if len(os.listdir("/proc/self/task")) > 1 else -1
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept:
            try:
                os.close(fd) if null < 0 else os.dup2(null, fd, inheritable=False)
            except OSError:  # the descriptor of the list itself
                pass
