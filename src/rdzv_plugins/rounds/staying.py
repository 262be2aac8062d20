"""A node that is done and serves others stays while they work: the waiting, and what it reports meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from rdzv_plugins.runtime import SYSTEM, Runtime
from rdzv_plugins.timing import Reporting

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_ASK_S = 10.0


def stay_while(
    goes_on: Callable[[], bool],
    working: Callable[[], Sequence[str]],
    runtime: Runtime = SYSTEM,
    *,
    every: float = _ASK_S,
    gone: Callable[[float], object] | None = None,
) -> None:
    """Wait until ``goes_on``, asked every second, is false, or ``working``, asked ``every`` so often, names nobody.

    ``gone`` waits at most so many seconds, and returns true as soon as nobody is working any more; without it that is
    not known sooner. A signal ends the wait, and so does an exception from any of them. Logs now and then, at growing
    intervals, for whom this node stays.
    """
    reporting, next_ask = Reporting(first=_LOOK_S, grows=True, runtime=runtime), runtime.monotonic()
    while goes_on():
        if runtime.monotonic() >= next_ask:
            names = working()
            if not names:
                return
            if reporting.is_due():
                logger.info("this node is done, and serves others: it stays while they work (%s)", ", ".join(names))
            next_ask = runtime.monotonic() + every
        if (gone or runtime.sleep)(_LOOK_S):
            return
