"""Our standard error, written by one thread: nobody else ever waits for whoever reads it.

A pipe that nobody reads takes 64 KiB, a terminal that was stopped nothing. With it every write to ``sys.stderr``
returns at once: of our log lines, of torch's, of warnings, of plug-ins. What cannot be held is dropped and counted.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable
from typing import Any

from rdzv_plugins.background_queue import BackgroundQueue

_FD = 2
_MOST_BYTES = 1 << 20
_RETRY_S = 0.2
_LAST_WORDS_S = 5.0
_REST_S = 0.1

_queue: BackgroundQueue[bytes] | None = None


def queue_stderr() -> None:
    """Put it in place of ``sys.stderr``. Not where something else is there already; calling it again does nothing."""
    global _queue
    now = sys.__stderr__
    if _queue is not None or now is None or now is not sys.stderr or now.fileno() != _FD:
        return
    now.flush()
    _queue = BackgroundQueue("rdzv-stderr", _write, _say_dropped, limit=_MOST_BYTES)
    sys.stderr = io.TextIOWrapper(_Stderr(_queue), now.encoding, "backslashreplace", write_through=True)


def drain() -> None:
    """Wait until all that was said is written, a few seconds at most: at the end of a command."""
    if _queue is not None:
        _queue.flush(_LAST_WORDS_S)


def rest() -> None:
    """Let the thread end, if all that was said is written soon: a process without threads is about to be forked."""
    if _queue is not None:
        _queue.rest(_REST_S)


def forward(data: bytes) -> None:
    """Pass on what a worker has written. Never blocks, once ``queue_stderr`` was called."""
    if _queue is None:
        _write(data)
    else:
        _queue.put(data, len(data))


def has_room(otherwise: Callable[[], None]) -> bool:
    """Whether ``forward`` would not fill what is kept for log lines; ``otherwise`` is called when that is so again."""
    return _queue is None or _queue.has_room(otherwise)


class _Stderr(io.RawIOBase):
    name, mode = "<stderr>", "wb"

    def __init__(self, queue: BackgroundQueue[bytes]) -> None:
        self._queue = queue

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        whole = bytes(data)
        self._queue.put(whole, len(whole))
        return len(whole)

    def isatty(self) -> bool:
        return os.isatty(_FD)

    def fileno(self) -> int:
        return _FD


def _write(data: bytes) -> None:
    while data:
        try:
            data = data[os.write(_FD, data) :]
        except BlockingIOError:  # shared with a program that made it non-blocking
            select.select([], [_FD], [], _RETRY_S)
        except OSError:  # whoever read it is gone: nothing may depend on that
            return


def _say_dropped(count: int) -> None:
    _write(f"rdzv: {count} messages were dropped here: standard error did not take them\n".encode())
