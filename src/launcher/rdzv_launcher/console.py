"""What the commands show on the screen: log lines, errors, and how they cope with a stderr that is gone or stuck.

One thread writes our standard error, so no other ever waits for its reader. A pipe that nobody reads takes 64 KiB, and
a stopped terminal nothing. After ``queue_stderr`` every write to ``sys.stderr`` returns at once: those of our log
lines, of torch's, of warnings, of plug-ins. What cannot be kept is dropped and counted.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from rdzv_plugins.background_queue import BackgroundQueue
from rdzv_plugins.errors import LimitTooLow, RdzvError, is_signal
from rdzv_plugins.plain_text import printable_lines

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_LOGGERS = ("rdzv_plugins", "rdzv_launcher")


class _Format(logging.Formatter):
    """A line of the log: ``12:00:01 rdzv-run warning: text``."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f" {record.levelname.lower()}"
        text = f"{self.formatTime(record, '%H:%M:%S')} {self._program}{level}: {record.getMessage()}"
        return printable_lines(f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text)


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error. A signal that arrives during a write still ends what the main thread waits for."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if error is not None and is_signal(error):
            raise error
        super().handleError(record)


def setup_logging(program: str, *, verbose: bool, quiet: bool = False) -> None:
    """Send our own log lines to stderr; with ``quiet`` only warnings and errors."""
    handler = _Handler()
    handler.setFormatter(_Format(program))
    for ours in map(logging.getLogger, _LOGGERS):
        ours.handlers[:] = [handler]
        ours.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
        ours.propagate = False


@contextlib.contextmanager
def logging_given_back() -> Iterator[None]:
    """Undo in the end what ``setup_logging`` changes, for a command that is called within a process."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(list(each.handlers), each.level, each.propagate) for each in loggers]
    try:
        yield
    finally:
        for each, (handlers, level, propagate) in zip(loggers, before, strict=True):
            each.handlers[:] = handlers
            each.setLevel(level)
            each.propagate = propagate


@contextlib.contextmanager
def warnings_collected() -> Iterator[list[str]]:
    """Collect the warnings of our loggers in a list instead of printing them."""
    collected: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        collected.append(record.getMessage())
        return False

    handlers = {handler for name in _LOGGERS for handler in logging.getLogger(name).handlers}
    for handler in handlers:
        handler.addFilter(keep)
    try:
        yield collected
    finally:
        for handler in handlers:
            handler.removeFilter(keep)


def say(program: str, text: str) -> None:
    """Print a line for the user. The reader of our stderr may be gone: the exit code must not depend on that."""
    with contextlib.suppress(OSError, ValueError):
        # one write: where stderr is not buffered (python -u), print() writes the line end separately
        sys.stderr.write(printable_lines(f"{program}: {text}") + "\n")
        sys.stderr.flush()


def of_the_system(error: BaseException) -> BaseException:
    """An error by which the system refuses something as what it is to the user; any other as it is."""
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return LimitTooLow(
            f"{error.strerror}{f': {error.filename}' if error.filename else ''}",
            remedy="Free some space, or use another disk: --log-dir=DIR for logs, TMPDIR=DIR for temporary files.",
        )
    if isinstance(error, OSError):
        where = traceback.extract_tb(error.__traceback__)[-1:]
        what = f"{where[0].line or where[0].name} " if where else ""
        return LimitTooLow(
            f"the system refused an operation: {what}({error.strerror or error}"
            f"{f': {error.filename}' if error.filename else ''})",
            remedy="Look for a limit (ulimit, container), sandbox or security policy (seccomp, AppArmor) that "
            "forbids it. -v shows where.",
        )
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't start new thread" in str(error)):
        return LimitTooLow(
            "out of memory" if isinstance(error, MemoryError) else "cannot start another thread",
            remedy="Raise ulimit -u and -v, or the pids and memory limits of the container.",
        )
    return error


def report(program: str, error: BaseException, *, verbose: bool) -> int:
    """Print an error as its message and remedy; returns the exit code."""
    if verbose:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(printable_lines("".join(traceback.format_exception(error)).rstrip()) + "\n")
    error = of_the_system(error)
    if isinstance(error, RdzvError):
        say(program, f"error: {error}")
        if error.remedy:
            say(program, error.remedy)
        return error.exit_code
    say(program, f"internal error: {type(error).__name__}: {error}")
    if not verbose:
        say(program, "Please report it, with the traceback that -v or RDZV_DEBUG=1 shows.")
    return RdzvError.exit_code


def open_standard_streams() -> None:
    """Make standard streams that can be relied on.

    Closed ones (``2>&-``) are replaced, as the next file or socket would otherwise take their number. Standard error
    keeps nobody waiting.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(fd, True)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    make_stdout_wait()
    queue_stderr()


def make_stdout_wait() -> None:
    """Have ``sys.stdout`` wait for its reader, also where a program that shares it made it non-blocking."""
    now = sys.stdout
    if sys.__stdout__ is not None and now is sys.__stdout__ and now.fileno() == 1:
        now.flush()
        sys.stdout = io.TextIOWrapper(
            # not buffered: the end of the process would wait for a thread that writes
            _Patient(1, "wb", closefd=False),
            now.encoding,
            now.errors,
            line_buffering=now.line_buffering,
            write_through=now.write_through,
        )


class _Patient(io.FileIO):
    """A file to which everything is written, also while it does not block."""

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        while rest:
            if (count := super().write(rest)) is None:  # no room
                select.select([], [self.fileno()], [])
            else:
                rest = rest[count:]
        return len(data)


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


def drain_stderr() -> None:
    """Wait until everything is written, a few seconds at most: for the end of a command."""
    if _queue is not None:
        _queue.flush(_LAST_WORDS_S)


def rest_stderr() -> None:
    """Let the thread end, if everything is written soon: a process without threads is about to be forked."""
    if _queue is not None:
        _queue.rest(_REST_S)


def forward_to_stderr(data: bytes) -> None:
    """Pass on what a worker has written. Never blocks, once ``queue_stderr`` was called."""
    if _queue is None:
        _write(data)
    else:
        _queue.put(data, len(data))


def stderr_has_room(otherwise: Callable[[], None]) -> bool:
    """Whether forwarding would leave the room kept for log lines; if not, ``otherwise`` is called once it would."""
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
    _write(f"rdzv: {count} messages were dropped: standard error was not read\n".encode())
