"""Work that the thread that finds it (a watch's or a proxy's) cannot wait for."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rdzv_plugins import errors
from rdzv_plugins.runtime import Runtime

logger = logging.getLogger(__name__)


class Background:
    """Runs tasks on threads of their own, those of one kind one after the other. Thread-safe.

    Of those that have to wait for one of their kind, only the newest is done: a service that is slow to answer is not
    asked the more often the more there is to hear. An outage ends a task; errors are logged.
    """

    def __init__(self, run_id: str, runtime: Runtime) -> None:
        self._run_id, self._runtime = run_id, runtime
        self._lock = self._runtime.Lock()
        self._next: dict[str, Callable[[], object] | None] = {}
        """For each kind of which a task runs: the one that follows."""

    def __call__(self, kind: str, task: Callable[[], object]) -> None:
        with self._lock:
            runs = kind in self._next
            self._next[kind] = task if runs else None
        if not runs:
            self._runtime.Thread(target=self._run, name="rdzv-elastic", args=(kind, task)).start()

    def _run(self, kind: str, task: Callable[[], object]) -> None:
        due: Callable[[], object] | None = task
        while due is not None:
            self._do(due)
            with self._lock:
                due = self._next.pop(kind)
                if due is not None:
                    self._next[kind] = None

    def _do(self, task: Callable[[], object]) -> None:
        try:
            task()
        except (errors.ConnectionLost, TimeoutError) as error:
            logger.debug("in the background: %s", error)
        except errors.RdzvError as error:
            logger.warning("run %s: %s", self._run_id, error)
        except Exception:  # what follows must still be done
            logger.exception("run %s: a task in the background has failed; please report it", self._run_id)
