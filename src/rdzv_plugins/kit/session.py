"""A ``Session`` for any thread, on top of one whose requests are coroutines on the loop's thread."""

from __future__ import annotations

import contextlib
import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rdzv_plugins.coordination import KeyValue, OnEvents
from rdzv_plugins.errors import ConnectionLost, EndpointUnreachable
from rdzv_plugins.kit.loop import LoopThread, here, hold, let_go
from rdzv_plugins.kvstore.coordination.reactor import StoppableCall, StoppableWatch

logger = logging.getLogger(__name__)

T = TypeVar("T")

_GOOD_BYE_S = 2.0
"""A session that cannot be ended within this time ends by itself."""


class Closed(Exception):
    """Raised by a coroutine of an ``AsyncSession`` that was still waiting when ``drop`` was called."""


class AsyncSession(ABC):
    """A session with a service, as coroutines that all run on one thread, any number of them at once.

    Deadlines are in the monotonic clock's seconds. A request raises ``TimeoutError`` with the reason when its deadline
    has come; ``ConnectionLost`` when the session has ended; ``EndpointUnreachable`` when nothing else will be done
    either, which ends the session, too; and ``Closed`` after ``drop``. It may be cancelled.
    """

    name: str
    """The service's name with its address, for messages: "Redis at 10.0.0.1:6379"."""
    ttl: float = 0.0
    known_until: float = 0.0
    local_addr: str = ""
    remote_addr: str = ""

    lose: Callable[[ConnectionLost], None]
    """Call this when the session has ended by itself, on any thread, perhaps repeatedly. It is set before ``open``."""

    @abstractmethod
    async def reach(self, deadline: float) -> None:
        """Connect to the service, trying again until the deadline.

        Raises ``TimeoutError``, and ``EndpointUnreachable`` before it if waiting is of no use.
        """

    @abstractmethod
    async def open(self, ttl: float, deadline: float) -> None:
        """Open the session at the service and start what keeps it alive. Sets ``ttl`` and the addresses."""

    @abstractmethod
    def why(self) -> str:
        """Say what is wrong with the service now, for those who wait."""

    @abstractmethod
    def problem(self, lead: str) -> EndpointUnreachable:
        """Return what is wrong with the service as an error, with what to do about it; ``lead`` says what was tried."""

    @abstractmethod
    async def create(self, key: str, value: bytes, deadline: float, *, ephemeral: bool) -> tuple[bool, KeyValue]:
        """Do what ``Session.create`` does."""

    @abstractmethod
    async def put(
        self, items: Mapping[str, bytes], guard: KeyValue | None, deadline: float, *, ephemeral: bool
    ) -> int | None:
        """Do what ``Session.put`` does."""

    @abstractmethod
    async def delete(self, keys: Sequence[str], guard: KeyValue | None, deadline: float) -> bool:
        """Do what ``Session.delete`` does."""

    @abstractmethod
    async def list(self, prefix: str, deadline: float) -> tuple[Sequence[KeyValue], int]:
        """Do what ``Session.list`` does."""

    @abstractmethod
    async def watch(self, prefix: str, call: StoppableCall, after: int, deadline: float) -> object:
        """Do what ``Session.watch`` does; the result is passed to ``unwatch``."""

    async def end_session(self, key: str, deadline: float) -> bool:
        """Do what ``EndsSessions.end_session`` does; False, or ``EndpointUnreachable``: it cannot."""
        return False

    @abstractmethod
    def unwatch(self, watched: Any) -> None:
        """Release a watch whose call-back is no longer called. May be called twice."""

    @abstractmethod
    async def end(self, deadline: float) -> None:
        """Tell the service that the session ends. May raise what a request does: then its time to live has to pass."""

    @abstractmethod
    async def drop(self) -> None:
        """Release everything: connections, tasks. May be repeated."""


class KitSession:
    """A ``Session`` by its methods. Opened by ``Coordination``, on the loop's thread, which it holds until its end."""

    def __init__(
        self, work: AsyncSession, on_lost: Callable[[ConnectionLost], None], on_over: Callable[[KitSession], object]
    ) -> None:
        self._work, self._on_over, self._on_lost = work, on_over, StoppableCall(on_lost, here())
        self._calls: list[StoppableCall] = []
        self._over: ConnectionLost | None = None
        self._loop: LoopThread = hold(here())
        self._runtime = runtime = self._loop.runtime
        self._ending = runtime.RLock()  # a signal handler may close
        self._pid = runtime.getpid()

    @property
    def ttl(self) -> float:
        return self._work.ttl

    @property
    def known_until(self) -> float:
        return self._work.known_until

    @property
    def local_addr(self) -> str:
        return self._work.local_addr

    @property
    def remote_addr(self) -> str:
        return self._work.remote_addr

    def create(self, key: str, value: bytes, *, ephemeral: bool = False, timeout: float) -> tuple[bool, KeyValue]:
        return self._ask(lambda deadline: self._work.create(key, value, deadline, ephemeral=ephemeral), timeout)

    def put(
        self, items: Mapping[str, bytes], *, ephemeral: bool = False, guard: KeyValue | None = None, timeout: float
    ) -> int | None:
        return self._ask(lambda deadline: self._work.put(items, guard, deadline, ephemeral=ephemeral), timeout)

    def delete(self, keys: Iterable[str], *, guard: KeyValue | None = None, timeout: float) -> bool:
        names = tuple(keys)
        return self._ask(lambda deadline: self._work.delete(names, guard, deadline), timeout)

    def list(self, prefix: str, *, timeout: float) -> tuple[Sequence[KeyValue], int]:
        return self._ask(lambda deadline: self._work.list(prefix, deadline), timeout)

    def watch(self, prefix: str, on_events: OnEvents, *, after: int = 0, timeout: float) -> StoppableWatch:
        """Do what ``Session.watch`` does. An error in ``on_events`` ends the session: it has missed an event."""
        call = StoppableCall(on_events, self._runtime)
        self._calls.append(call)
        try:
            watched = self._ask(lambda deadline: self._work.watch(prefix, call, after, deadline), timeout)
        except BaseException:
            call.stop()
            self._forget(call)
            raise
        return StoppableWatch(functools.partial(self._unwatch, watched, call))

    def end_session(self, key: str, *, timeout: float) -> bool:
        """Do what ``EndsSessions.end_session`` does."""
        return self._ask(lambda deadline: self._end_another(key, deadline), timeout)

    async def _end_another(self, key: str, deadline: float) -> bool:
        """What cannot be done to another session says nothing of this one."""
        try:
            return await self._work.end_session(key, deadline)
        except ConnectionLost:
            raise
        except (EndpointUnreachable, NotImplementedError) as error:  # it may not, or its author has yet to write it
            logger.info("the session of %r ends by itself: %s cannot end it: %r", key, self._work.name, error)
            return False

    def close(self) -> None:
        """Do what ``Session.close`` does; waits for a running call-back, so hold no lock it takes. None runs after."""
        self._end(f"the session with {self._work.name} has been closed", tell=True)

    def abandon(self) -> None:
        """End like a killed process: the service is not told, and waits for the time to live."""
        self._end(f"the session with {self._work.name} has been abandoned", tell=False)

    def _end(self, reason: str, *, tell: bool) -> None:
        if self._pid != self._runtime.getpid():  # the loop's thread, and all that it did, is the parent's
            return
        first = self._end_by(ConnectionLost(reason))
        if first and self._loop.is_current():  # from a call-back of this or another session
            self._loop.start(self._leave_and_let_go(tell))
        elif first:
            try:
                self._stop_calls()  # first: what has come by now is not told before the watches have ended
                with contextlib.suppress(TimeoutError):
                    self._loop.run(self._leave(tell), _GOOD_BYE_S)
            finally:
                self._stop_calls()
                let_go(self._loop)
            return
        self._stop_calls()

    def _stop_calls(self) -> None:
        for call in (self._on_lost, *self._calls):
            call.stop()

    def _end_by(self, error: ConnectionLost) -> bool:
        """False if it has ended before, by something else; whoever is told True clears up."""
        with self._ending:
            if self._over is not None:
                return False
            self._over = error
        self._on_over(self)
        return True

    async def _leave_and_let_go(self, tell: bool) -> None:
        try:
            await self._leave(tell)
        finally:
            let_go(self._loop)

    async def _leave(self, tell: bool) -> None:
        """Others know at once then."""
        try:
            if tell:
                with contextlib.suppress(TimeoutError, Closed, ConnectionLost, EndpointUnreachable):
                    await self._work.end(self._runtime.monotonic() + _GOOD_BYE_S * 0.8)  # else it goes by itself
        finally:
            await self._work.drop()

    def _lose(self, error: ConnectionLost) -> None:
        if self._end_by(error):
            self._loop.start(self._tell_lost(error))

    async def _tell_lost(self, error: ConnectionLost) -> None:
        try:
            await self._work.drop()
            self._on_lost(error)
        finally:
            let_go(self._loop)

    def _unwatch(self, watched: object, call: StoppableCall) -> None:
        if self._pid != self._runtime.getpid():
            return
        if self._over is None:
            self._loop.soon(self._work.unwatch, watched)
        call.stop()
        self._forget(call)

    def _forget(self, call: StoppableCall) -> None:
        with contextlib.suppress(ValueError):  # cancelled before
            self._calls.remove(call)

    def _ask(self, work: Callable[[float], Coroutine[Any, Any, T]], timeout: float) -> T:
        """What the coroutine returns, within ``timeout`` seconds. From any thread but the loop's."""
        if self._pid != self._runtime.getpid():
            raise ConnectionLost(f"the session with {self._work.name} belongs to the parent of this process")
        if self._over is not None:
            raise self._lost()
        try:
            return self._loop.run(work(self._runtime.monotonic() + timeout), timeout)
        except Closed:
            raise self._lost() from None
        except TimeoutError:
            if self._over is not None:
                raise self._lost() from None
            raise
        except ConnectionLost as error:
            self._lose(error)
        except EndpointUnreachable as error:  # nothing else will be done either
            self._lose(ConnectionLost(str(error), remedy=error.remedy))
        raise self._lost()

    def _lost(self) -> ConnectionLost:
        over = self._over or ConnectionLost(f"the session with {self._work.name} has ended")
        error = ConnectionLost(str(over), remedy=over.remedy)
        error.silent, error.silent_since, error.__cause__ = over.silent, over.silent_since, over.__cause__
        return error
