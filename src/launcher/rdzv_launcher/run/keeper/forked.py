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
    """Close all descriptors except the standard ones and those in ``kept``."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:  # the descriptor of the list itself
                pass
