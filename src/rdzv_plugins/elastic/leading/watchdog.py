"""Takes the lead away from a node that cannot act: its session is alive, but it is stuck in a hook or a lock."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Callable, Iterator

from rdzv_plugins.runtime import Runtime

logger = logging.getLogger(__name__)


class LeaderWatchdog:
    """Watches the thread that enters ``turn``; calls ``on_stuck`` once if a turn takes longer than ``limit`` seconds.

    Waiting for the service does not count (``asking``): a session that gets no answer ends by itself. ``on_stuck`` is
    called on the watchdog's thread with a sentence saying where the watched thread is, and may block. Thread-safe.
    """

    def __init__(self, limit: float, on_stuck: Callable[[str], None], runtime: Runtime) -> None:
        self._limit, self._on_stuck, self._runtime = limit, on_stuck, runtime
        self._changed = self._runtime.Condition()
        self._busy_since: float | None = None
        self._watched = 0
        self._ended = False
        self.stuck = False
        """True once the leader was found stuck: it does not lead any more, whatever it does when it goes on."""
        self._runtime.Thread(target=self._run, name="rdzv-leader-watchdog").start()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """A context for one turn of the loop, which may take at most ``limit`` seconds."""
        self._watched = self._runtime.get_ident()
        self._set_busy(True)
        try:
            yield
        finally:
            self._set_busy(False)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """A context within a turn, for waiting for an answer from the service."""
        self._set_busy(False)
        try:
            yield
        finally:
            self._set_busy(True)

    def end(self) -> None:
        """Stop: there is nothing to watch any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _set_busy(self, busy: bool) -> None:
        with self._changed:
            self._busy_since = self._runtime.monotonic() if busy else None
            self._changed.notify_all()

    def _run(self) -> None:
        with self._changed:
            while not self._ended:
                since = self._busy_since
                left = None if since is None else since + self._limit - self._runtime.monotonic()
                if left is not None and left <= 0:
                    self.stuck = True
                    break
                self._changed.wait(left)
            else:
                return
        self._on_stuck(self._where())

    def _where(self) -> str:
        frame = sys._current_frames().get(self._watched)
        if frame is None:
            return "it has just gone on"
        last = traceback.extract_stack(frame)[-1]
        return f"it stands in {last.name} ({last.filename}, line {last.lineno})"
