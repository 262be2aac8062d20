"""Work that the thread that finds it (a watch's or a proxy's) cannot wait for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from rdzv_plugins import errors

logger = logging.getLogger(__name__)


class Background:
    """Runs each task that it is called with on a thread of its own. Thread-safe.

    An outage ends a task; errors are logged.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def __call__(self, task: Callable[[], object]) -> None:
        threading.Thread(target=self._run, args=(task,), name="rdzv-elastic", daemon=True).start()

    def _run(self, task: Callable[[], object]) -> None:
        try:
            task()
        except (errors.ConnectionLost, TimeoutError) as error:
            logger.debug("in the background: %s", error)
        except errors.RdzvError as error:
            logger.warning("run %s: %s", self._run_id, error)
