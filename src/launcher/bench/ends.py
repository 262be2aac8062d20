"""Children that end with their parent, also when it is killed."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def with_parent(number: int = signal.SIGKILL) -> Callable[[], None]:
    """To be called by the parent; what it returns is for the child, as ``preexec_fn`` or after a fork.

    The child then gets that signal when the thread that has started it ends. The arrangement outlives an exec.
    """
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # too late for the signal
            os._exit(1)

    return arrange
