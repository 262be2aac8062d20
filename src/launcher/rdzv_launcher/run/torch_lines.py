"""torch's own line of a failed worker, left out where ours has said it.

It names a local rank, and not always the first worker that failed: beside ours it reads as a second failure.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

_TORCH = logging.getLogger("torch.distributed.elastic.multiprocessing.api")
_FAILED = "failed (exitcode: %s) local_rank: %s (pid: %s) of binary: %s"


@contextlib.contextmanager
def failures_said_once(said: Callable[[], bool]) -> Iterator[None]:
    """Meanwhile torch's line is logged only if we have not ``said`` it: by then the worker may have been reaped."""

    def wanted(record: logging.LogRecord) -> bool:
        return record.msg != _FAILED or not said()

    _TORCH.addFilter(wanted)
    try:
        yield
    finally:
        _TORCH.removeFilter(wanted)
