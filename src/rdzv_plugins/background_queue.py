"""A bounded queue with a thread that empties it: whoever puts something in never waits for what happens to it.

Not ``logging.handlers.QueueListener``, which has either a ``SimpleQueue`` without a bound or a ``Queue`` in which a
signal handler that logs waits for the thread that it has interrupted; which prints a traceback to standard error for
each record that it drops, and counts none; and whose ``stop`` waits for as long as a handler takes.

One hands the log records of this package to the user's handlers. A log call on a thread that keeps a session alive,
leads or serves must not wait for whoever reads the log: a full pipe would make this node stand still while others take
it to be alive.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import copy
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from rdzv_plugins.runtime import SYSTEM, Runtime

if TYPE_CHECKING:
    import threading


T = TypeVar("T")

_MOMENT_S, _BEGIN_S = 0.0005, 1.0
_LAST_WORDS_S = 5.0
"""Seconds that the end of the process waits for what is still to be delivered."""


class BackgroundQueue(Generic[T]):
    """Hands each item to ``deliver``, in order, on one thread. Thread-safe, also within a signal handler.

    Whatever would make it hold more than ``limit`` (in whatever ``size`` counts) is dropped; ``on_dropped`` is called
    on that thread with the number of dropped items once it flows again. Both may block; exceptions from them are
    ignored. When the process ends it waits a few seconds for what is left. A forked child delivers at once, as it has
    no such thread; where no further thread is allowed, ``flush`` delivers.
    """

    def __init__(
        self,
        name: str,
        deliver: Callable[[T], None],
        on_dropped: Callable[[int], None],
        *,
        limit: int,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._runtime = runtime
        self._name, self._deliver, self._on_dropped, self._limit = name, deliver, on_dropped, limit
        self._changed = self._runtime.Condition(self._runtime.RLock())  # a signal handler may re-enter it
        self._items: collections.deque[tuple[T, int]] = collections.deque()
        self._held = self._dropped = 0
        self._on_room: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self._resting = False
        self._process = self._runtime.getpid()
        atexit.register(self.flush, _LAST_WORDS_S)

    def put(self, item: T, size: int = 1) -> bool:
        """Queue an item; returns False if it was dropped. Never blocks."""
        if self._runtime.getpid() != self._process:
            self._deliver(item)
            return True
        with self._changed:
            if self._items and self._held + size > self._limit:
                self._dropped += 1
                return False
            self._items.append((item, size))
            self._held += size
            self._start()
            self._changed.notify_all()
        return True

    def has_room(self, otherwise: Callable[[], None]) -> bool:
        """Whether less than half of it is in use.

        If not, ``otherwise`` is called once that is so, on the queue's thread. For callers that can wait with what they
        have, so that it is not dropped. If a caller asks again with the same ``otherwise``, that is called once.
        """
        with self._changed:
            room = self._held < self._limit // 2 or self._runtime.getpid() != self._process
            if otherwise in self._on_room:
                self._on_room.remove(otherwise)
            if not room:
                self._on_room.append(otherwise)
            return room

    def flush(self, timeout: float) -> bool:
        """Wait until everything is delivered, at most ``timeout`` seconds; True if it is."""
        if self._runtime.getpid() != self._process:
            return True
        with self._changed:
            while self._thread is None and self._items:
                item, size = self._items.popleft()
                self._held -= size
                with contextlib.suppress(Exception):
                    self._deliver(item)
            return self._changed.wait_for(lambda: not self._items, timeout)

    def rest(self, timeout: float) -> None:
        """Let its thread end when everything is delivered, within ``timeout`` seconds; the next item starts another."""
        with self._changed:
            thread, self._resting = self._thread, True
            self._changed.notify_all()
        if thread is not None and self._runtime.getpid() == self._process:
            until = self._runtime.monotonic() + timeout
            thread.join(timeout)
            # the kernel keeps it for a moment more, and a fork then looks like that of a threaded process
            task = f"/proc/self/task/{thread.native_id}"
            while not thread.is_alive() and os.path.exists(task) and self._runtime.monotonic() < until:
                self._runtime.sleep(_MOMENT_S)
        self._resting = False

    def _start(self) -> None:
        if self._thread is None:
            begun = self._runtime.Event()
            self._thread = self._runtime.Thread(target=self._run, args=(begun,), name=self._name)
            try:
                self._thread.start()
            except RuntimeError:  # no further thread is allowed
                self._thread = None
            except BaseException:  # raised by a signal handler, before it was started or after
                if not begun.wait(_BEGIN_S):
                    self._thread = None
                raise

    def _run(self, begun: threading.Event) -> None:
        begun.set()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._resting)
                if not self._items:
                    self._thread = None
                    return
                item, size = self._items[0]  # kept until it is delivered
            with contextlib.suppress(Exception):
                self._deliver(item)
            dropped, on_room = 0, list[Callable[[], None]]()
            with self._changed:
                if self._held - size < self._limit // 2:
                    dropped, self._dropped = self._dropped, 0
                    on_room, self._on_room = self._on_room, []
            with contextlib.suppress(Exception):
                if dropped:
                    self._on_dropped(dropped)
            with self._changed:
                self._items.popleft()
                self._held -= size
                self._changed.notify_all()
            for each in on_room:
                with contextlib.suppress(Exception):
                    each()


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
