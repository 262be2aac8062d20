"""A node that is done and serves others stays while they work: the waiting, and what it reports meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from rdzv_plugins.reporting import Reporting
from rdzv_plugins.runtime import SYSTEM, Runtime

logger = logging.getLogger(__name__)

LOOK_S = 1.0
_ASK_S = 10.0


class Stay:
    """Reports at growing intervals for whom it stays. For use by one thread."""

    def __init__(self, runtime: Runtime = SYSTEM) -> None:
        self._reporting = Reporting(first=LOOK_S, grows=True, runtime=runtime)

    def report(self, names: Sequence[str]) -> None:
        """Log now and then for whom this node stays."""
        if self._reporting.is_due():
            logger.info("this node is done, and serves others: it stays while they work (%s)", ", ".join(names))


def stay_while(goes_on: Callable[[], bool], working: Callable[[], Sequence[str]], runtime: Runtime = SYSTEM) -> None:
    """Wait until ``goes_on``, asked every second, is false, or ``working``, asked every ten, names nobody.

    A signal ends the wait, and so does an exception from either.
    """
    report, next_ask = Stay(runtime), runtime.monotonic()
    while goes_on():
        if runtime.monotonic() >= next_ask:
            names = working()
            if not names:
                return
            report.report(names)
            next_ask = runtime.monotonic() + _ASK_S
        runtime.sleep(LOOK_S)
