"""The thread of this process on which all sessions of the kit live: a single one, while there are any.

So a node whose main thread is busy, or waits for its workers, stays alive and learns of changes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import os
import selectors
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from rdzv_plugins.runtime import SYSTEM, Runtime

logger = logging.getLogger(__name__)

T = TypeVar("T")

NAME = "rdzv-kit"
TIMEOUTS = (TimeoutError, asyncio.TimeoutError)
"""One class from Python 3.11 on."""
_SLACK_S = 2.0
"""What is asked keeps its deadline by itself; this is for a loop that stands still."""
_END_S = 10.0
_TURNS = 3
"""Of the loop: sockets are closed, and whoever waits for a task is told, some turns after the task's end."""
_ENDED = "the session has ended"
_PASSED_OVER = (
    os.path.dirname(asyncio.__file__),
    os.path.dirname(__file__),
    threading.__file__,
    inspect.getfile(Runtime),
    selectors.__file__,
)
"""Whose frames on the loop's thread are not those of an author."""


class Blocked(TimeoutError):
    """No answer, because a coroutine blocks the loop's thread: it waits without ``await``. The text says where."""


class _Loop(asyncio.SelectorEventLoop):
    """Looks names up on daemon threads: asyncio's own threads would hold up the end of the process."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.runtime = runtime

    async def getaddrinfo(self, host: Any, port: Any, **rest: Any) -> Any:
        return await in_thread(lambda: self.runtime.getaddrinfo(host, port, **rest))


def here() -> Runtime:
    """The runtime of the loop that runs on this thread; this process, if none of ours does."""
    try:
        return getattr(asyncio.get_running_loop(), "runtime", SYSTEM)
    except RuntimeError:
        return SYSTEM


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run ``function`` on a new daemon thread and return its result: it may block for as long as it likes."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def tell(value: T | None, error: BaseException | None) -> None:
        if not result.done():  # nobody waits any more
            result.set_exception(error) if error is not None else result.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = function(*arguments), None
        except Exception as error:
            outcome = None, error
        try:
            loop.call_soon_threadsafe(tell, *outcome)
        except RuntimeError:  # the loop has ended
            pass

    here().Thread(target=work, name=f"{NAME}-call").start()
    return await result


class LoopThread:
    """An asyncio loop on a daemon thread, which ends when nobody holds it any more. See ``acquire_loop``."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._loop = _Loop(runtime)
        self._running: set[concurrent.futures.Future[Any]] = set()
        self._thread = runtime.Thread(target=self._run, name=NAME)
        self.holders = 0
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._finish())
        finally:
            self._loop.close()

    async def _finish(self) -> None:
        tasks = sorted(asyncio.all_tasks() - {asyncio.current_task()}, key=asyncio.Task.get_name)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def is_current(self) -> bool:
        """True on the loop's own thread: whoever waits for it there waits for ever."""
        return self.runtime.get_ident() == self._thread.ident

    def run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """What ``work`` returns or raises; ``work`` ends within ``timeout`` seconds. From any other thread.

        Raises ``TimeoutError``, also when the loop has ended.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise TimeoutError(_ENDED) from None
        try:
            return future.result(timeout + _SLACK_S)
        except (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError) as error:
            future.cancel()
            if not str(error) and (where := self._blocked_in()):
                raise Blocked(f"{where} blocks the thread of all sessions: it waits without await") from None
            raise TimeoutError(str(error) or f"no answer within {timeout:g} s") from None
        except concurrent.futures.CancelledError:
            raise TimeoutError(_ENDED) from None
        except BaseException:  # a signal's exception, on the main thread
            future.cancel()
            raise

    def _blocked_in(self) -> str:
        """The author's method that runs on the loop's thread now; empty if the loop waits, or does our own."""
        frame, own = sys._current_frames().get(self._thread.ident or 0), None
        while frame is not None:  # from the innermost outwards
            if not frame.f_code.co_filename.startswith(_PASSED_OVER):
                own = frame
            frame = frame.f_back
        return f"{own.f_code.co_name}() ({own.f_code.co_filename}, line {own.f_lineno})" if own else ""

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Let ``work`` run by itself. From any thread."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop has ended
            work.close()
            return
        self._running.add(future)  # asyncio itself would let go of it
        future.add_done_callback(self._ended)

    def soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call ``function`` on the loop's thread, unless that has ended."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            pass

    def _ended(self, future: concurrent.futures.Future[Any]) -> None:
        self._running.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            logger.error("a task of a session has failed", exc_info=error)

    def stop(self) -> None:
        """End the thread; waits for it, unless it is this one."""
        self.soon(self._loop.stop)
        if not self.is_current():
            self._thread.join(_END_S)


async def within(timeout: float, work: Awaitable[T], undo: Callable[[], object] = lambda: None) -> T:
    """Return the result of ``work``. Raises ``TimeoutError`` after ``timeout`` seconds; then ``work`` has ended.

    ``asyncio.wait_for`` may lose a cancellation that comes just when the work is done. Here the work is then undone.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=max(0.0, timeout))
    except asyncio.CancelledError:
        if await _ended(task):
            undo()
        raise
    if not task.done() and not await _ended(task):
        raise TimeoutError
    return task.result()


def looked_at(task: asyncio.Future[Any]) -> None:
    """Mark the task's error as seen: whoever waits for the task gets it, and asyncio is not to report it."""
    if not task.cancelled():
        task.exception()


async def _ended(task: asyncio.Future[Any]) -> bool:
    """Cancel it. True if it was done all the same."""
    task.cancel()
    await asyncio.wait({task})
    return not task.cancelled() and task.exception() is None


class _Loops:
    """The loops of a process that are held."""

    def __init__(self, runtime: Runtime) -> None:
        self.lock = runtime.RLock()  # a signal handler may close a session
        self.current: LoopThread | None = None
        self.for_good: LoopThread | None = None


def acquire_loop(runtime: Runtime = SYSTEM) -> LoopThread:
    """The loop of this process, started if need be. Each ``acquire_loop`` needs one ``release_loop``."""
    loops = runtime.single(_Loops)
    with loops.lock:
        if loops.current is None:
            loops.current = LoopThread(runtime)
        loops.current.holders += 1
        return loops.current


def release_loop(loop: LoopThread) -> None:
    """Give back what ``acquire_loop`` returned; the last to do so ends the thread."""
    loops = loop.runtime.single(_Loops)
    with loops.lock:
        loop.holders -= 1
        last = loop.holders == 0
        if last and loops.current is loop:
            loops.current = None
    if last:
        loop.stop()


def hold_for_good(runtime: Runtime = SYSTEM) -> LoopThread:
    """The loop of this process, which then never ends: for a library that does not follow from one to another."""
    loops = runtime.single(_Loops)
    with loops.lock:
        if loops.for_good is None:
            loops.for_good = acquire_loop(runtime)
        return loops.for_good


if hasattr(os, "register_at_fork"):  # the thread has stayed in the parent, and with it its connections
    os.register_at_fork(after_in_child=lambda: SYSTEM.forget(_Loops))
