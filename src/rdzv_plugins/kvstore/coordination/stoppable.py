"""Calls back from a thread of ours, with the certainty that it has stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class StoppableCall:
    """A call-back that neither begins nor goes on once ``stop`` has returned elsewhere."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = function
        self._running = threading.Lock()
        self._thread: int | None = None
        self._stopped = False

    def __call__(self, argument: object) -> None:
        with self._running:
            if self._stopped:
                return
            self._thread = threading.get_ident()
            try:
                self._function(argument)
            finally:
                self._thread = None

    def stop(self) -> None:
        """Let no further call begin, and wait for a running one.

        If called from within it, that one goes on as the last.
        """
        self._stopped = True
        if self._thread != threading.get_ident():
            with self._running:  # wait for the one that runs
                pass
