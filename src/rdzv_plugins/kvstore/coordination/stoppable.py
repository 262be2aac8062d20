"""Calls back from a thread of ours, with the certainty that it has stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rdzv_plugins.runtime import SYSTEM, Runtime


class StoppableCall:
    """A call-back that neither begins nor goes on once ``stop`` has returned elsewhere."""

    def __init__(self, function: Callable[[Any], object], runtime: Runtime = SYSTEM) -> None:
        self._function, self._get_ident = function, runtime.get_ident
        self._running = runtime.Lock()
        self._thread: int | None = None
        self._stopped = False

    def __call__(self, argument: object) -> None:
        with self._running:
            if self._stopped:
                return
            self._thread = self._get_ident()
            try:
                self._function(argument)
            finally:
                self._thread = None

    def stop(self) -> None:
        """Let no further call begin, and wait for a running one.

        If called from within it, that one goes on as the last.
        """
        self._stopped = True
        if self._thread != self._get_ident():
            with self._running:  # wait for the one that runs
                pass
