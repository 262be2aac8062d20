"""Reports every ten seconds what a blocked rendezvous waits for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

from rdzv_plugins.threads import OwnThread
from rdzv_plugins.timing import Reporting

logger = logging.getLogger(__name__)

_SAMPLE_S = 0.5


class Waiting:
    """A context manager around something that blocks; ``facts`` is called on a thread of its own.

    ``last`` keeps the newest facts that are not empty: torch tidies up its state before it raises a time-out.
    """

    def __init__(self, facts: Callable[[], str]) -> None:
        self._facts = facts
        self.last = facts()
        self._over = threading.Event()
        self._thread = OwnThread(target=self._run, name="rdzv-waiting")

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        start, reporting = time.monotonic(), Reporting()
        while not self._over.wait(_SAMPLE_S):
            self.last = self._facts() or self.last
            if reporting.is_due():
                known = self.last or "the state of the rendezvous has not been reached yet"
                logger.info("waiting: %s (%.0f s)", known, time.monotonic() - start)
