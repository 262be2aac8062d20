"""A session with Redis: it is kept alive, asks and watches, from any thread."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rdzv_plugins import Event, KeyValue, OnEvents
from rdzv_plugins.errors import ConnectionLost, EndpointUnreachable

from rdzv_redis.calls import StoppableCall
from rdzv_redis.channel import Channel, Closed
from rdzv_redis.following import Follower, Watched
from rdzv_redis.keeping import PER_TTL, Keeper
from rdzv_redis.loop import hold, let_go
from rdzv_redis.requests import Gone, Requests
from rdzv_redis.server import Server
from rdzv_redis.space import Space
from rdzv_redis.wire import Wire

T = TypeVar("T")

_GOOD_BYE_S = 2.0
"""A session that cannot be closed within this time ends by itself."""
_LEAST_ATTEMPT_S = 0.5
_MOST_ATTEMPT_S = 3.0


class _Watch:
    def __init__(self, session: RedisSession, watched: Watched) -> None:
        self._session, self._watched = session, watched

    def cancel(self) -> None:
        """As ``Watch.cancel``; waits for a call that runs, so hold no lock that it takes."""
        self._session._unwatch(self._watched)


class RedisSession:
    """A ``Session``. Opened by ``RedisCoordination``, on the loop's thread, which it holds until its end."""

    def __init__(
        self,
        server: Server,
        space: Space,
        ttl: float,
        on_lost: Callable[[ConnectionLost], None],
        on_over: Callable[[RedisSession], object],
    ) -> None:
        self._server, self._on_over, self._ttl = server, on_over, ttl
        self._space = space
        attempt = min(max(ttl / PER_TTL, _LEAST_ATTEMPT_S), _MOST_ATTEMPT_S)
        self._channel = Channel(server, space.keys, attempt, self._troubled)
        self._requests = Requests(self._channel, secrets.token_hex(8), secrets.token_hex(8))
        self._follower: Follower | None = None
        self._keeper: Keeper | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._on_lost = StoppableCall(on_lost)
        self._calls: list[StoppableCall] = []
        self._over: ConnectionLost | None = None
        self._ending = threading.RLock()  # a signal handler may close
        self._addresses = ("", "")

    async def open(self, wire: Wire, outage: float, deadline: float) -> None:
        """Begin to live, over a connection that is there. Called once. Raises what ``Channel.call`` does."""
        self._addresses = wire.local_addr, wire.remote_addr
        self._channel.take(wire)
        try:
            position, identity = await self._requests.open(self._ttl, max(outage, self._ttl), deadline)
        except BaseException:
            await self._channel.close()
            raise
        self._server.proven = True
        self._loop = hold()
        follower = self._follower = Follower(self._server, self._space.events, position, identity)
        keeper = self._keeper = Keeper(self._server, self._requests, follower, self._ttl, outage)
        follower.on_change, follower.on_ttl = self._requests.saw, keeper.shorten
        follower.on_another_history = lambda: keeper.gone("LOST")  # or this process stood still, and all is of others
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._until(keeper.run())), loop.create_task(self._until(follower.run()))]

    @property
    def ttl(self) -> float:
        return self._ttl

    @property
    def local_addr(self) -> str:
        return self._addresses[0]

    @property
    def remote_addr(self) -> str:
        return self._addresses[1]

    def create(self, key: str, value: bytes, *, ephemeral: bool = False, timeout: float) -> tuple[bool, KeyValue]:
        return self._ask(lambda deadline: self._requests.create(key, value, deadline, ephemeral=ephemeral), timeout)

    def put(
        self, items: Mapping[str, bytes], *, ephemeral: bool = False, guard: KeyValue | None = None, timeout: float
    ) -> int | None:
        """As ``Session.put``, in one step."""
        return self._ask(lambda deadline: self._requests.put(items, guard, deadline, ephemeral=ephemeral), timeout)

    def delete(self, keys: Iterable[str], *, guard: KeyValue | None = None, timeout: float) -> bool:
        """As ``Session.delete``, in one step."""
        names = tuple(keys)
        return self._ask(lambda deadline: self._requests.delete(names, guard, deadline), timeout)

    def list(self, prefix: str, *, timeout: float) -> tuple[Sequence[KeyValue], int]:
        return self._ask(lambda deadline: self._requests.find(prefix, deadline), timeout)

    def watch(self, prefix: str, on_events: OnEvents, *, after: int = 0, timeout: float) -> _Watch:
        """As ``Session.watch``. An error of ``on_events`` ends the session: it has missed an event."""
        watched = Watched(prefix, StoppableCall(on_events))
        self._ask(lambda deadline: self._watch(watched, after, deadline), timeout)
        return _Watch(self, watched)

    def close(self) -> None:
        """As ``Session.close``; waits for a call-back that runs, so hold no lock that it takes. None begins after."""
        first = self._end_by(ConnectionLost(f"the session with {self._server.name} has been closed"))
        if first and self._loop.is_current():  # from a call-back of this or another session
            self._loop.start(self._say_good_bye_and_let_go())
        elif first:
            try:
                with contextlib.suppress(TimeoutError):
                    self._loop.run(self._say_good_bye(), _GOOD_BYE_S)
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

    async def _say_good_bye_and_let_go(self) -> None:
        await self._say_good_bye()
        let_go(self._loop)

    async def _say_good_bye(self) -> None:
        """Others know at once then, and what the last session leaves is deleted."""
        try:
            await self._stop_tasks()
            with contextlib.suppress(TimeoutError, Closed, Gone, EndpointUnreachable):
                await self._requests.close(time.monotonic() + _GOOD_BYE_S * 0.8)  # else it goes by itself
        finally:
            await self._channel.close()

    async def _stop_tasks(self) -> None:
        """All but the one that asks for it."""
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        self._tasks = []
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _until(self, end: Coroutine[Any, Any, ConnectionLost]) -> None:
        await self._lose(await end)

    async def _lose(self, error: ConnectionLost) -> None:
        if self._end_by(error):
            try:
                await self._stop_tasks()
                await self._channel.close()
                self._on_lost(error)
            finally:
                let_go(self._loop)

    def _troubled(self) -> None:
        """A connection to Redis has broken: the other one may be as dead, without a sign of it."""
        if self._follower is not None:
            self._follower.renew()

    async def _watch(self, watched: Watched, after: int, deadline: float) -> None:
        assert self._follower is not None
        self._calls.append(watched.call)
        self._follower.add(watched)  # first: what happens while Redis answers is kept
        try:
            events: Sequence[Event]
            if after:
                events, revision = await self._requests.since(watched.prefix, after, deadline)
            else:
                held, revision = await self._requests.find(watched.prefix, deadline)
                events = [Event(each.key, each.value, each.revision) for each in held]
        except BaseException:
            self._follower.remove(watched)
            self._calls.remove(watched.call)
            raise
        try:
            watched.begin(events, revision)
        except Exception as error:
            await self._lose(
                ConnectionLost(f"the session with {self._server.name} ends: it may have missed an event: {error!r}")
            )

    def _unwatch(self, watched: Watched) -> None:
        if self._over is None and self._follower is not None:
            self._loop.soon(self._follower.remove, watched)
        watched.call.stop()
        with contextlib.suppress(ValueError):  # cancelled before
            self._calls.remove(watched.call)

    def _ask(self, work: Callable[[float], Coroutine[Any, Any, T]], timeout: float) -> T:
        """What the coroutine returns, within ``timeout`` seconds. From any thread but the loop's."""
        if self._over is not None:
            raise self._lost()
        try:
            return self._loop.run(work(time.monotonic() + timeout), timeout)
        except Closed:
            raise self._lost() from None
        except TimeoutError:
            if self._over is not None:
                raise self._lost() from None
            raise
        except Gone as error:
            assert self._keeper is not None
            lost = self._keeper.gone(error.how)
        except EndpointUnreachable as error:  # nothing else will be done either
            lost = ConnectionLost(str(error), remedy=error.remedy)
        self._loop.start(self._lose(lost))
        raise lost

    def _lost(self) -> ConnectionLost:
        over = self._over or ConnectionLost(f"the session with {self._server.name} has ended")
        error = ConnectionLost(str(over), remedy=over.remedy)
        error.silent = over.silent
        return error
