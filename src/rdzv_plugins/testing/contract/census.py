"""What a process holds, for tests that nothing is left behind: counted once nothing is ending any more."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_STILL_S = 0.3
_PAUSE_S = 0.05
_PATIENCE_S = 20.0


def census() -> dict[str, int]:
    """How many threads, descriptors and child processes this process has."""
    gc.collect()
    tasks = Path("/proc/self/task")
    return {
        "Python threads": threading.active_count(),
        "threads": len(list(tasks.iterdir())),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "child processes": sum(map(_children, tasks.iterdir())),
    }


def at_rest(figures: Callable[[], T]) -> T:
    """The ``figures`` once they stay the same for a while; the last ones if they never do.

    What was closed is gone a moment later: the other side has to notice, a thread has to end.
    """
    now = figures()
    since = begin = time.monotonic()
    while time.monotonic() - since < _STILL_S and time.monotonic() - begin < _PATIENCE_S:
        time.sleep(_PAUSE_S)
        last, now = now, figures()
        if now != last:
            since = time.monotonic()
    return now


def _children(task: Path) -> int:
    try:
        return len((task / "children").read_text().split())
    except OSError:  # the thread has just ended
        return 0
