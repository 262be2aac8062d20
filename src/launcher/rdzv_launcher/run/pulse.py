"""Whether the agent's main thread is alive, as other threads see it."""

from __future__ import annotations

import math
import sys
import traceback

from rdzv_plugins.runtime import SYSTEM, Runtime


class MainThreadHeartbeat:
    """Made by the thread that beats; any thread may read it. Neither reading nor writing takes a lock."""

    def __init__(self, runtime: Runtime = SYSTEM) -> None:
        self._monotonic, self._thread = runtime.monotonic, runtime.get_ident()
        self._back_at = math.inf

    def beat(self, within: float | None) -> None:
        """The thread is alive, and will be back ``within`` seconds; None: it waits for others, however long."""
        self._back_at = math.inf if within is None else self._monotonic() + within

    def overdue(self) -> float:
        """For how many seconds the thread has been overdue; 0 or less: it is not due yet."""
        return self._monotonic() - self._back_at

    def place(self) -> str:
        """Where the thread is now, as ``/site/plugin.py:12 (rdzv_worker_env)``; empty if it has ended."""
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return ""
        last = traceback.extract_stack(frame, limit=1)[-1]
        return f"{last.filename}:{last.lineno} ({last.name})"
