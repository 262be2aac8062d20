"""Our standard error, written by one thread: no other thread ever waits for its reader.

A pipe that nobody reads takes 64 KiB, and a stopped terminal nothing. With this module every write to ``sys.stderr``
returns at once: those of our log lines, of torch's, of warnings, of plug-ins. What cannot be kept is dropped and
counted.
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
    """Put the queue in place of ``sys.stderr``, unless something else has replaced that. Further calls do nothing."""
    global _queue
    now = sys.__stderr__
    if _queue is not None or now is None or now is not sys.stderr or now.fileno() != _FD:
        return
    now.flush()
    _queue = BackgroundQueue("rdzv-stderr", _write, _say_dropped, limit=_MOST_BYTES)
    sys.stderr = io.TextIOWrapper(_Stderr(_queue), now.encoding, "backslashreplace", write_through=True)


def drain() -> None:
    """Wait until everything is written, a few seconds at most: for the end of a command."""
    if _queue is not None:
        _queue.flush(_LAST_WORDS_S)


def rest() -> None:
    """Let the thread end, if everything is written soon: a process without threads is about to be forked."""
    if _queue is not None:
        _queue.rest(_REST_S)


def forward(data: bytes) -> None:
    """Pass on what a worker has written. Never blocks, once ``queue_stderr`` was called."""
    if _queue is None:
        _write(data)
    else:
        _queue.put(data, len(data))


def has_room(otherwise: Callable[[], None]) -> bool:
    """Whether ``forward`` would leave the room kept for log lines; if not, ``otherwise`` is called once it would."""
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
        except OSError:  # the reader is gone: nothing may depend on that
            return


def _say_dropped(count: int) -> None:
    _write(f"rdzv: {count} messages were dropped here: standard error did not take them\n".encode())
