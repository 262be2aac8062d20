"""Hands the log records of this package to the user's handlers on a thread of its own.

A log call on a thread that keeps a session alive, leads or serves must not wait for whoever reads the log: a full pipe
would make this node stand still while others take it to be alive.
"""

from __future__ import annotations

import copy
import logging

from rdzv_plugins.background_queue import BackgroundQueue

_TOP = "rdzv_plugins"
_MOST = 10_000
"""The most records that are held."""
_FLUSH_S = 1.0


def queue_logging() -> None:
    """From now on, hand records of ``rdzv_plugins`` to the configured handlers in the background.

    These are the handlers of the logger itself as they are now, and of the loggers above it as they are at the time.
    For a process in which others have set up logging. Calling it again changes nothing.
    """
    logger = logging.getLogger(_TOP)
    if not any(isinstance(each, _Queueing) for each in logger.handlers):
        logger.handlers[:] = [_Queueing(logger)]
        logger.propagate = False


def unqueue_logging() -> None:
    """Undo ``queue_logging``; earlier records have been handed on when this returns, or are dropped."""
    logger = logging.getLogger(_TOP)
    for each in logger.handlers:
        if isinstance(each, _Queueing):
            each.restore(logger)
            return


def adopt_logger(name: str) -> None:
    """Send what a plug-in logs below its own ``name`` the same way as this package's records, at the same levels."""
    if name != _TOP and not name.startswith(f"{_TOP}."):
        logging.getLogger(name).parent = logging.getLogger(_TOP)


class _Queueing(logging.Handler):
    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._own, self._propagate = list(logger.handlers), logger.propagate
        self._above = logger.parent if logger.propagate else None
        self._queue: BackgroundQueue[logging.LogRecord] = BackgroundQueue(
            "rdzv-log", self._hand_on, self._say_dropped, limit=_MOST
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record with its text, formatted now: its arguments may change before it is written."""
        record = copy.copy(record)
        try:
            record.msg, record.args = record.getMessage(), None
        except Exception:
            self.handleError(record)
            return
        self._queue.put(record)

    def restore(self, logger: logging.Logger) -> None:
        self._queue.flush(_FLUSH_S)
        logger.handlers[:], logger.propagate = self._own, self._propagate

    def _hand_on(self, record: logging.LogRecord) -> None:
        for each in self._own:
            if record.levelno >= each.level:
                each.handle(record)
        if self._above is not None and (self._above.hasHandlers() or not self._own):
            self._above.callHandlers(record)  # uses Python's last resort if there are no handlers at all

    def _say_dropped(self, count: int) -> None:
        text = f"{count} messages were dropped: the log did not take them"
        self._hand_on(logging.LogRecord(_TOP, logging.WARNING, __file__, 0, text, None, None))
