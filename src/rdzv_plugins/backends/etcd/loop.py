"""The thread of this process on which gRPC's asyncio API runs: one for all sessions.

So a node whose main thread is busy, or waits for its workers, keeps its lease and hears of changes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SLACK_S = 2.0
"""What is asked keeps its deadline by itself; this is for a loop that is gone."""


class LoopThread:
    """An asyncio loop on a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._running: set[concurrent.futures.Future[object]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rdzv-etcd", daemon=True)
        self._thread.start()

    def is_current(self) -> bool:
        """True on the loop's own thread: whoever waits for it there waits for ever."""
        return threading.get_ident() == self._thread.ident

    def run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """What ``work`` returns or raises; ``work`` ends within ``timeout`` seconds. From any other thread."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout + _SLACK_S)
        except (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError) as error:
            future.cancel()
            raise TimeoutError(str(error) or f"no answer within {timeout:g} s") from None
        except BaseException:  # a signal's exception, on the main thread
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Let ``work`` run by itself. From any thread."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._running.add(future)  # asyncio itself would let go of it
        future.add_done_callback(self._ended)

    def soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call ``function`` on the loop's thread."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def _ended(self, future: concurrent.futures.Future[object]) -> None:
        self._running.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            logger.error("a task of a session with etcd has failed", exc_info=error)


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """What ``function`` returns, on a daemon thread of its own: asyncio's threads hold up the end of the process."""
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
        loop.call_soon_threadsafe(tell, *outcome)

    threading.Thread(target=work, name="rdzv-etcd-dial", daemon=True).start()
    return await result


def looked_at(task: asyncio.Future[Any]) -> None:
    """Its error is for whoever waits for it, if anybody does: asyncio is not to report it."""
    if not task.cancelled():
        task.exception()


_current: LoopThread | None = None
_starting = threading.Lock()


def loop_thread() -> LoopThread:
    """The one of this process, started if need be."""
    global _current
    with _starting:
        if _current is None:
            _current = LoopThread()
        return _current


def _after_fork() -> None:
    """The thread has stayed in the parent, and with it its connections."""
    global _current, _starting
    _current, _starting = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
