"""``ClientSession``: a ``Session`` for any thread, by a ``ServiceClient`` on the loop's; its watches miss nothing."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rdzv_plugins.coordination import Event, KeyValue, OnEvents
from rdzv_plugins.errors import BrokenPlugin, Compacted, ConnectionLost, EndpointUnreachable, RdzvError
from rdzv_plugins.kit.asking import LONGEST_ATTEMPT_S, MOST_ATTEMPT_S, Asking, Closed
from rdzv_plugins.kit.client import WAIT_S, ServiceClient
from rdzv_plugins.kit.keeping import PER_TTL, KeepAlive
from rdzv_plugins.kit.loop import LoopThread, acquire_loop, here, release_loop, within
from rdzv_plugins.kvstore.coordination.reactor import CancellableWatch, StoppableCall

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LEAST_ATTEMPT_S = 0.5
_GOOD_BYE_S = 2.0
"""A session that cannot be ended within this time ends by itself."""
_MORE_S = 2.0
"""For what a session needs once the service answers, however late that is."""


async def _first(news: AsyncIterator[T]) -> T:
    async for each in news:
        return each
    raise EOFError


class _CallBackFailed(RdzvError):
    """A watch's call-back has raised ``cause``."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(repr(cause))
        self.cause = cause


class _Watched:
    """A watch of ``prefix``, which is told by ``call``."""

    def __init__(self, prefix: str, call: StoppableCall) -> None:
        self.prefix, self.call = prefix, call
        self.revision = 0
        """Up to which it was told."""
        self.names: set[str] | None = None
        """Of the keys then; None if that is not known."""
        self.stream: AsyncIterator[tuple[Sequence[Event], int]] | None = None
        self.task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """No more is asked for. On the loop's thread; may be repeated."""
        if self.task is not None:
            self.task.cancel()

    def tell(self, events: Sequence[Event]) -> None:
        if self.names is not None:
            for event in events:
                (self.names.discard if event.value is None else self.names.add)(event.key)
        try:
            if events:
                self.call(events)
        except Exception as error:
            raise _CallBackFailed(error) from error


class ClientSession(Asking):
    """A ``Session`` by its methods, once ``open`` has opened it; it holds the loop's thread from then until its end."""

    def __init__(self, client: ServiceClient, outage: float) -> None:
        super().__init__(client, outage)
        self._keep_alive: KeepAlive | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._watches: dict[_Watched, None] = {}  # until they are cancelled; of any thread
        self._polls = type(client).watch is ServiceClient.watch
        self._writing, self._number = asyncio.Lock(), 0
        self._runtime = runtime = here()
        self._ending = runtime.RLock()  # a signal handler may close
        self._pid = runtime.getpid()
        self._over: ConnectionLost | None = None
        self._loop: LoopThread
        self._on_lost: StoppableCall
        self._on_over: Callable[[ClientSession], object]
        self.local_addr = self.remote_addr = ""

    async def open(
        self,
        ttl: float,
        on_lost: Callable[[ConnectionLost], None],
        on_over: Callable[[ClientSession], object],
        timeout: float,
    ) -> None:
        """Reach the service within ``timeout`` seconds, and open the session; ``abandon`` it if this raises.

        Raises ``TimeoutError``, and ``EndpointUnreachable`` before it if waiting is of no use.
        """
        self._on_lost, self._on_over = StoppableCall(on_lost, self._runtime), on_over
        self._loop = acquire_loop(self._runtime)
        deadline, client = here().monotonic() + timeout, self._client

        async def nothing() -> None: ...

        await self._repeat(nothing, deadline)
        self._attempt = min(max(ttl / PER_TTL, _LEAST_ATTEMPT_S), MOST_ATTEMPT_S)
        asked = here().now()
        self._ttl = await self.ask("open", client.open, ttl, deadline=deadline + _MORE_S)
        self.local_addr, self.remote_addr = client.local_addr, client.remote_addr
        self._proven = True
        self._keep_alive = KeepAlive(self, client, self._ttl, opened=asked)
        self._keeping = asyncio.get_running_loop().create_task(self._keep(self._keep_alive))

    async def _keep(self, keep_alive: KeepAlive) -> None:
        lost = await keep_alive.run()
        if "keep_alive" in self._faulty:
            lost.__cause__ = BrokenPlugin(str(lost), remedy=lost.remedy)
        self._lose(lost)

    @property
    def ttl(self) -> float:
        return self._ttl

    @property
    def known_until(self) -> float:
        return self._keep_alive.lease.known_until if self._keep_alive is not None else 0.0

    def create(self, key: str, value: bytes, *, ephemeral: bool = False, timeout: float) -> tuple[bool, KeyValue]:
        method = self._client.create
        return self._run(lambda until: self._write(until, "create", method, key, value, ephemeral=ephemeral), timeout)

    def put(
        self, items: Mapping[str, bytes], *, ephemeral: bool = False, guard: KeyValue | None = None, timeout: float
    ) -> int | None:
        method, how = self._client.put, {"ephemeral": ephemeral, "guard": guard}
        return self._run(lambda until: self._write(until, "put", method, items, **how), timeout)

    def delete(self, keys: Iterable[str], *, guard: KeyValue | None = None, timeout: float) -> bool:
        method, names = self._client.delete, tuple(keys)
        return self._run(lambda until: self._write(until, "delete", method, names, guard=guard), timeout)

    def list(self, prefix: str, *, timeout: float) -> tuple[Sequence[KeyValue], int]:
        return self._run(lambda until: self._list(prefix, until), timeout)

    def watch(self, prefix: str, on_events: OnEvents, *, after: int = 0, timeout: float) -> CancellableWatch:
        """Do what ``Session.watch`` does. An error in ``on_events`` ends the session: it has missed an event."""
        watched = _Watched(prefix, StoppableCall(on_events, self._runtime))
        self._watches[watched] = None
        try:
            self._run(lambda until: self._watch(watched, after, until), timeout)
        except BaseException:
            self._unwatch(watched)
            raise
        return CancellableWatch(functools.partial(self._unwatch, watched))

    def end_session(self, key: str, *, timeout: float) -> bool:
        """Do what ``EndsSessions.end_session`` does."""
        return self._run(lambda until: self._end_another(key, until), timeout)

    async def _end_another(self, key: str, deadline: float) -> bool:
        """What cannot be done to another session says nothing of this one."""
        try:
            return await self.ask("end_session", self._client.end_session, key, deadline=deadline)
        except ConnectionLost:
            raise
        except (EndpointUnreachable, NotImplementedError) as error:  # it may not, or its author has yet to write it
            logger.info("the session of %r ends by itself: %s cannot end it: %r", key, self.name, error)
            return False

    def close(self) -> None:
        """Do what ``Session.close`` does; waits for a running call-back, so hold no lock it takes. None runs after."""
        self._end(f"the session with {self.name} has been closed", tell=True)

    def abandon(self) -> None:
        """End like a killed process: the service is not told, and waits for the time to live."""
        self._end(f"the session with {self.name} has been abandoned", tell=False)

    def _end(self, reason: str, *, tell: bool) -> None:
        if self._pid != self._runtime.getpid():  # the loop's thread, and all that it did, is the parent's
            return
        first = self._end_by(ConnectionLost(reason))
        if first and self._loop.is_current():  # from a call-back of this or another session
            self._loop.start(self._take_leave_and_let_go(tell))
        elif first:
            try:
                self._stop_calls()  # first: what has come by now is not told before the watches have ended
                with contextlib.suppress(TimeoutError):
                    self._loop.run(self._take_leave(tell), _GOOD_BYE_S)
            finally:
                self._stop_calls()
                release_loop(self._loop)
            return
        self._stop_calls()

    def _stop_calls(self) -> None:
        for call in (self._on_lost, *(each.call for each in list(self._watches))):
            call.stop()

    def _end_by(self, error: ConnectionLost) -> bool:
        """False if it has ended before, by something else; whoever is told True clears up."""
        with self._ending:
            if self._over is not None:
                return False
            self._over = error
        self._on_over(self)
        return True

    async def _take_leave_and_let_go(self, tell: bool) -> None:
        try:
            await self._take_leave(tell)
        finally:
            release_loop(self._loop)

    async def _take_leave(self, tell: bool) -> None:
        """Others know at once then."""
        try:
            if tell:
                self._stop()
                deadline = self._runtime.monotonic() + _GOOD_BYE_S * 0.8
                with contextlib.suppress(TimeoutError, Closed, ConnectionLost, EndpointUnreachable):
                    await self.ask("end", self._client.end, deadline=deadline)  # else it goes by itself
        finally:
            await self.drop()

    def _lose(self, error: ConnectionLost) -> None:
        if self._end_by(error):
            self._loop.start(self._tell_lost(error))

    async def _tell_lost(self, error: ConnectionLost) -> None:
        try:
            await self.drop()
            self._on_lost(error)
        finally:
            release_loop(self._loop)

    def _unwatch(self, watched: _Watched) -> None:
        if self._pid != self._runtime.getpid():
            return
        if self._over is None:
            self._loop.soon(watched.stop)
        watched.call.stop()
        self._watches.pop(watched, None)  # it may have been cancelled before

    def _run(self, work: Callable[[float], Coroutine[Any, Any, T]], timeout: float) -> T:
        """What the coroutine returns, within ``timeout`` seconds. From any thread but the loop's."""
        if self._pid != self._runtime.getpid():
            raise ConnectionLost(f"the session with {self.name} belongs to the parent of this process")
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
        over = self._over or ConnectionLost(f"the session with {self.name} has ended")
        error = ConnectionLost(str(over), remedy=over.remedy)
        error.silent, error.silent_since, error.__cause__ = over.silent, over.silent_since, over.__cause__
        return error

    async def drop(self) -> None:
        """Release everything: connections, tasks. May be repeated."""
        self._closed = True
        self._stop()
        await super().drop()

    def _stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        for watched in list(self._watches):
            watched.stop()

    def _broken(self, fault: RdzvError) -> RdzvError:
        """End the session, if it was opened, because of ``fault``; returns the error to raise."""
        if self._keep_alive is None:
            return fault
        lost = ConnectionLost(str(fault), remedy=fault.remedy)
        lost.__cause__ = fault
        self._lose(lost)
        return lost

    def _why_over(self) -> ConnectionLost:
        return super()._why_over() if self._keep_alive is None else self._keep_alive.over()

    async def _write(
        self, deadline: float, name: str, method: Callable[..., Awaitable[T]], *arguments: Any, **named: Any
    ) -> T:
        """One after the other: of numbers, the service knows the last one."""
        try:
            await within(deadline - here().monotonic(), self._writing.acquire(), undo=self._writing.release)
        except TimeoutError:
            raise self.late() from None
        try:
            self._number += 1
            arguments = self._number, *arguments
            again = self._client.repeats_writes
            return await self.ask(name, method, *arguments, deadline=deadline, again=again, **named)
        finally:
            self._writing.release()

    async def _list(self, prefix: str, deadline: float) -> tuple[Sequence[KeyValue], int]:
        return await self.ask("list", self._client.list, prefix, deadline=deadline)

    async def _watch(self, watched: _Watched, after: int, deadline: float) -> None:
        events: Sequence[Event] = ()
        if not after:
            held, watched.revision = await self._list(watched.prefix, deadline)
            watched.names = set()
            events = [Event(each.key, each.value, each.revision) for each in held]
        else:
            names = await self.ask("names_at", self._client.names_at, watched.prefix, after, deadline=deadline)
            watched.revision, watched.names = after, None if names is None else set(names)
            events, watched.revision = await self._repeat(lambda: self._next(watched), deadline)
        watched.task = asyncio.get_running_loop().create_task(self._follow(watched, events))

    async def _follow(self, watched: _Watched, events: Sequence[Event]) -> None:
        """Tell ``events``, which is all up to its revision, and then what comes."""
        limit = WAIT_S + LONGEST_ATTEMPT_S if self._polls else math.inf
        try:
            watched.tell(events)
            while True:
                try:
                    await self._repeat(lambda: self._serve(watched), math.inf, limit=limit)
                except Compacted:
                    if watched.names is None:
                        raise
                    events, watched.revision = await self._compared(watched, watched.names)
                    watched.tell(events)
        except Closed:
            pass
        except ConnectionLost as error:
            self._lose(error)
        except NotImplementedError as error:
            self._broken(BrokenPlugin(f"changes() of the client for {self.name} is not written yet: {error}"))
        except _CallBackFailed as error:
            logger.error("a watch's call-back has failed", exc_info=error.cause)
            self._lose(
                ConnectionLost(f"the session with {self.name} ends: it may have missed an event: {error.cause!r}")
            )
        except RdzvError as error:
            self._broken(error)

    async def _serve(self, watched: _Watched) -> None:
        """Tell what comes: all that is pushed, or what one poll has found."""
        while True:
            events, watched.revision = await self._next(watched)
            watched.tell(events)
            if self._polls:
                return
            self._noted = False

    async def _next(self, watched: _Watched) -> tuple[Sequence[Event], int]:
        """What comes next by its stream, which begins anew when it has failed."""
        if watched.stream is None:
            watched.stream = self._client.watch(watched.prefix, watched.revision)
        name = "changes" if self._polls else "watch"
        try:
            return await self._call(name, _first, watched.stream, checked_as="changes")
        except BaseException:
            watched.stream = None
            raise

    async def _compared(self, watched: _Watched, known: set[str]) -> tuple[Sequence[Event], int]:
        """What has changed since, where the service has forgotten it: as far as what exists now shows it."""
        held, revision = await self._list(watched.prefix, math.inf)
        gone = sorted(known - {each.key for each in held})
        events = [Event(key, None, watched.revision + 1) for key in gone]  # then, or later
        events += [Event(each.key, each.value, each.revision) for each in held if each.revision > watched.revision]
        return events, revision
