"""What the standard library's ``threading``, ``queue`` and ``time`` offer, on a ``Scheduler``.

Only what our own code uses. Mistakes that the real ones notice are noticed here, too.
"""

from __future__ import annotations

import functools
import queue
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from simulation.scheduler import Scheduler
from simulation.scheduler import Thread as Scheduled


class Lock:
    """``threading.Lock``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: list[Scheduled] = []
        self.owner: Scheduled | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = self._scheduler
        scheduler.pause()
        if self.owner is not None:
            limit = None if timeout < 0 else timeout
            if not blocking or not scheduler.wait_until(self._waiting, lambda: self.owner is None, limit):
                return False
        self.owner = scheduler.current
        return True

    def release(self) -> None:
        self._scheduler.check()  # a killed thread may have lost it while it waited
        if self.owner is None:
            raise RuntimeError("release unlocked lock")
        self.owner = None
        if self._waiting:
            self._scheduler.wake(self._waiting)

    def locked(self) -> bool:
        return self.owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """``threading.RLock``."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        mine = self.owner is not None and self.owner is self._scheduler.current
        if not mine and not super().acquire(blocking, timeout):
            return False
        self.depth += 1
        return True

    def release(self) -> None:
        self._scheduler.check()
        if self.owner is not self._scheduler.current:
            raise RuntimeError("cannot release un-acquired lock")
        self.depth -= 1
        if not self.depth:
            self.owner = None
            if self._waiting:
                self._scheduler.wake(self._waiting)


class Condition:
    """``threading.Condition``."""

    def __init__(self, scheduler: Scheduler, lock: Lock | None = None) -> None:
        self._scheduler = scheduler
        self._lock = RLock(scheduler) if lock is None else lock
        self._waiting: list[Scheduled] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        self._check("wait on")
        lock, depth = self._lock, 1
        if isinstance(lock, RLock):
            depth, lock.depth = lock.depth, 1
        waiting, scheduler = self._waiting, self._scheduler
        lock.release()
        try:
            return scheduler.wait(waiting, timeout)
        finally:
            lock.acquire()
            if isinstance(lock, RLock):
                lock.depth = depth

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        read = self._scheduler.running.process.clock.read
        end = None if timeout is None else read() + timeout
        while not (result := predicate()):
            left = None if end is None else end - read()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        self._check("notify on")
        for _ in range(n):
            self._scheduler.wake(self._waiting)

    def notify_all(self) -> None:
        self._check("notify on")
        self._scheduler.wake_all(self._waiting)

    def _check(self, what: str) -> None:
        if self._lock.owner is not self._scheduler.current:
            raise RuntimeError(f"cannot {what} un-acquired lock")


class Event:
    """``threading.Event``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: list[Scheduled] = []
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._scheduler.wake_all(self._waiting)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._is_set:
            self._scheduler.pause()
            return True
        self._scheduler.wait(self._waiting, timeout)
        return self._is_set


class SimpleQueue:
    """``queue.SimpleQueue``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: list[Scheduled] = []
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._scheduler.wake(self._waiting)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        scheduler = self._scheduler
        scheduler.pause()
        if not scheduler.wait_until(self._waiting, lambda: self._items, timeout if block else 0):
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(False)

    def empty(self) -> bool:
        return not self._items


class Thread:
    """``threading.Thread``, of the process of whoever starts it."""

    def __init__(
        self,
        scheduler: Scheduler,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str = "thread",
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._scheduler, self._target = scheduler, target
        self._args, self._kwargs = tuple(args), dict(kwargs or {})
        self.name, self.daemon = name, daemon
        self._started: Scheduled | None = None

    @property
    def ident(self) -> int | None:
        return None if self._started is None else self._started.ident

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        if self._started is not None:
            raise RuntimeError("threads can only be started once")
        self._started = self._scheduler.spawn(self._scheduler.running.process, self.name, self.run)

    def is_alive(self) -> bool:
        return self._started is not None and not self._started.done

    def join(self, timeout: float | None = None) -> None:
        if self._started is None:
            raise RuntimeError("cannot join thread before it is started")
        if self._started is self._scheduler.current:
            raise RuntimeError("cannot join current thread")
        if not self._started.done:
            self._scheduler.wait(self._started.joining, timeout)


class OwnThread(Thread):
    """``rdzv_plugins.runtime.OwnThread``. An error that ends it is one of ``Scheduler.failed`` as well."""

    def __init__(
        self,
        scheduler: Scheduler,
        target: Callable[..., object],
        name: str = "thread",
        args: Iterable[Any] = (),
        on_error: Callable[[Exception], object] | None = None,
        daemon: bool = True,
    ) -> None:
        super().__init__(scheduler, target=target, name=name, args=args, daemon=daemon)
        self._on_error = on_error

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            if self._on_error is not None:
                self._on_error(error)
            raise


class Timer(Thread):
    """``threading.Timer``."""

    def __init__(
        self, scheduler: Scheduler, interval: float, function: Callable[..., object], args: Iterable[Any] = ()
    ) -> None:
        super().__init__(scheduler, target=function, name="timer", args=args)
        self._interval, self.finished = interval, Event(scheduler)

    def cancel(self) -> None:
        self.finished.set()

    def run(self) -> None:
        if not self.finished.wait(self._interval):
            super().run()
            self.finished.set()


class Threads:
    """The names of ``threading``, ``queue`` and ``time`` that our code uses."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.Lock = functools.partial(Lock, scheduler)
        self.RLock = functools.partial(RLock, scheduler)
        self.Condition = functools.partial(Condition, scheduler)
        self.Event = functools.partial(Event, scheduler)
        self.SimpleQueue = functools.partial(SimpleQueue, scheduler)
        self.Thread = functools.partial(OwnThread, scheduler)
        self.Timer = functools.partial(Timer, scheduler)
        self.sleep = scheduler.sleep
        self.monotonic: Callable[[], float] = functools.partial(getattr, scheduler, "now")

    def get_ident(self) -> int:
        return self._scheduler.running.ident
