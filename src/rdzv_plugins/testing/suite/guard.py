"""Ends what does not end: a test over its limit, a run that ignores Ctrl-C.

It first raises an exception in the main thread, as ``Guard`` is told. If that does not get through, because the thread
waits in C or has swallowed it, it ends the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rdzv_plugins.linux.children import children_now

INTERRUPTED = 130
_UNWIND_S = 30.0
"""Seconds within which a test that was ended has to take down what it had set up."""
_INTERRUPT_S = 5.0
"""Seconds after Ctrl-C within which all tests have to take down what they had set up."""
_STILL_S = 30.0
_NUDGE = b"\0"
"""A byte that is not the number of any signal."""


class Guard:
    """Watches the tests of this process from a thread of its own. Its methods are for the main thread.

    ``limit`` applies to each phase of a test, in seconds. ``still(item, seconds)`` is called from the thread when a
    test takes long. So is ``last_words(item, what)``, and the process ends when it returns: ``what`` is why the test
    was ended; it is empty after an interrupt, which may also come when there is no test.

    ``alone``: all tests of the process belong to the suite. Then the first interrupt sets a limit to everything that
    follows, and a second one ends the process; otherwise only what hangs in a test of the suite is ended after one.
    """

    def __init__(
        self,
        limit: float,
        still: Callable[[pytest.Item, float], None],
        last_words: Callable[[pytest.Item | None, str], None],
        *,
        alone: bool,
    ) -> None:
        self._limit, self._still, self._last_words, self._alone = limit, still, last_words, alone
        self._lock = threading.Lock()
        self._item: pytest.Item | None = None
        self._other: Any = None
        """The handler of SIGALRM before the phase."""
        self._begin: float | None = None
        """When the running phase has begun; None between phases."""
        self._told = 0.0
        self._overdue = self._stopped = False
        self._end: float | None = None
        """When the process ends, unless something changes before that."""
        self._interrupts = 0
        self._woken, self._wake = socket.socketpair()
        self._before: list[Callable[[], Any]] = []
        """Calls that restore the state before ``start``."""
        self._stderr = os.dup(2)  # pytest has its own there while a test runs
        self._thread = threading.Thread(target=self._watch, name="conformance-guard", daemon=True)

    @property
    def watches(self) -> bool:
        """Whether it is watching, that is, between ``start`` and ``stop``."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to watch."""
        for each in (self._wake, self._woken):
            each.setblocking(False)
        if threading.current_thread() is threading.main_thread():
            other = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
            self._before.append(lambda: signal.set_wakeup_fd(other, warn_on_full_buffer=False))
            if self._alone and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs
                signal.signal(signal.SIGINT, signal.default_int_handler)
                self._before.append(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; without ``start``, there is only something to close."""
        while self._before:
            self._before.pop()()
        self._stopped = True
        self._nudge()
        if self.watches:
            self._thread.join()
        self._woken.close()
        self._wake.close()
        os.close(self._stderr)

    @contextlib.contextmanager
    def phase(self, item: pytest.Item) -> Iterator[None]:
        """Surround one phase of a test: set-up, call or end. If it exceeds its limit, it fails."""
        main = threading.current_thread() is threading.main_thread()
        self._other = signal.signal(signal.SIGALRM, self._on_alarm) if main else None
        with self._lock:
            self._item, self._begin, self._overdue = item, time.monotonic(), False
            self._told = self._begin
        self._nudge()
        try:
            yield
        finally:
            self._begin = None
            with self._lock:
                if not (self._alone and self._interrupts):
                    self._end, self._interrupts = None, 0
            if self._other is not None:
                signal.signal(signal.SIGALRM, self._other)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        if self._overdue and self._begin is not None:
            self._overdue = False
            raise pytest.fail.Exception(f"it is over its limit of {self._limit:g} s{_place(frame)}", pytrace=True)
        if callable(self._other):  # another's alarm, for example pytest-timeout's
            self._other(number, frame)

    def _nudge(self) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(_NUDGE)

    def _watch(self) -> None:
        while not self._stopped:
            select.select([self._woken], [], [], self._wait())
            with contextlib.suppress(BlockingIOError):
                interrupts = self._woken.recv(4096).count(signal.SIGINT)
                if self._alone or self._begin is not None:
                    self._interrupts += interrupts
            self._look(time.monotonic())

    def _wait(self) -> float | None:
        with self._lock:
            nexts = [] if self._end is None else [self._end]
            if self._begin is not None:
                nexts += [self._begin + self._limit] * (self._end is None) + [self._told + _STILL_S]
        return max(0.0, min(nexts) - time.monotonic()) if nexts else None

    def _look(self, now: float) -> None:
        with self._lock:
            item, begin, end = self._item, self._begin, self._end
            over = begin is not None and end is None and now >= begin + self._limit
            if over:
                self._overdue, self._end = True, now + min(_UNWIND_S, 2 * self._limit)
            elif self._interrupts and end is None:
                self._end = now + (_INTERRUPT_S if self._alone else _UNWIND_S)
            still = begin is not None and now >= self._told + _STILL_S
            if still:
                self._told = now
        if over:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        elif (self._interrupts > 1 and self._alone) or (self._interrupts and end is not None and now >= end):
            self._finish(item if begin is not None else None, "", INTERRUPTED)
        elif end is not None and now >= end:
            what = (
                f"it is over its limit of {self._limit:g} s and cannot be interrupted; its threads are shown on stderr"
            )
            self._finish(item, what, 1)
        if still and item is not None and begin is not None:
            self._still(item, now - begin)

    def _finish(self, item: pytest.Item | None, what: str, code: int) -> None:
        """End the process, and those that it has started."""
        try:
            if what:
                faulthandler.dump_traceback(self._stderr)
            self._last_words(item, what)
        finally:
            end_process(code)


def end_process(code: int) -> None:
    """End this process at once, with everything it has started; waits for no thread. Never returns."""
    for pid in _descendants(os.getpid(), children_now()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(code)


def end_process_later(code: int, seconds: float) -> None:
    """End this process as ``end_process`` does, unless it ends by itself within ``seconds``: a thread may keep it."""

    def end() -> None:
        time.sleep(seconds)
        end_process(code)

    threading.Thread(target=end, name="conformance-end", daemon=True).start()


def _descendants(pid: int, pids_of: Callable[[int], list[int]]) -> list[int]:
    """The descendants of a process, the deepest first."""
    return [each for child in pids_of(pid) for each in (*_descendants(child, pids_of), child)]


def _place(frame: FrameType | None) -> str:
    """Where a test is: the innermost function outside Python, pytest and the suite; empty if there is none."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if not _is_frame_of_ours(path):
            return f", in {frame.f_code.co_name}() of {path.name}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""


def _is_frame_of_ours(path: Path) -> bool:
    here, python = Path(__file__).parents[1], Path(os.__file__).parent
    packages = {"site-packages", "dist-packages"} & set(path.parts)
    if packages:
        return bool({"_pytest", "pluggy"} & set(path.parts)) or path.is_relative_to(here)
    return path.is_relative_to(here) or path.is_relative_to(python) or not path.is_absolute()  # <frozen ...>
