"""A session with Redis, on the kit's thread: it asks, is kept alive, and follows the run's stream of changes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from rdzv_plugins import Event, KeyValue
from rdzv_plugins.clock import now
from rdzv_plugins.errors import ConnectionLost, EndpointUnreachable
from rdzv_plugins.kit import AsyncSession, Keeper, StoppableCall

from rdzv_redis.channel import Channel
from rdzv_redis.following import Follower, Watched
from rdzv_redis.requests import Gone, Requests
from rdzv_redis.server import Server
from rdzv_redis.space import Space
from rdzv_redis.wire import Wire

T = TypeVar("T")

PER_TTL = 4
"""So often within the shortest time to live of a run a node says that it lives: others notice its end in time."""
_LEAST_ATTEMPT_S = 0.5
_MOST_ATTEMPT_S = 3.0


class RedisSession(AsyncSession):
    """``outage``: seconds without an answer to put up with."""

    keeper: Keeper
    channel: Channel
    requests: Requests
    follower: Follower

    def __init__(self, server: Server, space: Space, outage: float) -> None:
        self.name = server.name
        self.server, self.space, self._outage = server, space, outage
        self._wire: Wire | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def known_until(self) -> float:  # type: ignore[override]
        return self.keeper.known_until

    def why(self) -> str:
        return self.server.reason.text

    def problem(self, lead: str) -> EndpointUnreachable:
        return self.server.problem(lead)

    async def reach(self, deadline: float) -> None:
        self._wire = await self.server.connect(deadline)

    async def open(self, ttl: float, deadline: float) -> None:
        wire, opened = self._wire, now()
        assert wire is not None
        self.ttl, self.local_addr, self.remote_addr = ttl, wire.local_addr, wire.remote_addr
        attempt = min(max(ttl / PER_TTL, _LEAST_ATTEMPT_S), _MOST_ATTEMPT_S)
        self.channel = Channel(self.server, self.space.keys, attempt, self._troubled)
        self.channel.take(wire)
        self.requests = requests = Requests(self.channel, secrets.token_hex(8), secrets.token_hex(8))
        position, identity = await requests.open(ttl, max(self._outage, ttl), deadline)
        self.server.proven = True
        self.keeper = keeper = Keeper(
            self.name, "Redis", self._renew, lambda: self.server.reason, ttl, self._outage, opened
        )
        self.follower = follower = Follower(self.server, self.space.events, position, identity)
        follower.on_change, follower.on_ttl = requests.saw, lambda least: keeper.more_often(least / PER_TTL)
        follower.on_another_history = lambda: self._gone("LOST")  # or this process stood still, and all is of others
        keeper.more_often(requests.shortest / PER_TTL)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._until(keeper.run())), loop.create_task(self._until(follower.run()))]

    async def _until(self, end: Coroutine[Any, Any, ConnectionLost]) -> None:
        self.lose(await end)

    async def _renew(self, deadline: float) -> None:
        self.follower.expect(await self._asked(self.requests.keep(deadline)))
        self.keeper.more_often(self.requests.shortest / PER_TTL)

    async def _asked(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except Gone as error:
            raise self._gone(error.how) from None

    def _gone(self, how: str) -> ConnectionLost:
        """Why, as far as this node can tell, when Redis says so."""
        if how == "BACK" or (how == "LOST" and self.keeper.silence < max(self._outage, self.ttl)):
            return ConnectionLost(
                f"the session with {self.name} has ended: Redis has lost data of this run (it was started again "
                "without them, it was flushed, a replica that was behind took over, or it evicts keys)",
                remedy="Let Redis keep its data (appendonly yes, maxmemory-policy noeviction), and delete none of a "
                "run that goes on.",
            )
        return self.keeper.over()

    def _troubled(self) -> None:
        """A connection to Redis has broken: the other one may be as dead, without a sign of it."""
        if self._tasks:
            self.follower.renew()

    async def create(self, key: str, value: bytes, deadline: float, *, ephemeral: bool) -> tuple[bool, KeyValue]:
        return await self._asked(self.requests.create(key, value, deadline, ephemeral=ephemeral))

    async def put(
        self, items: Mapping[str, bytes], guard: KeyValue | None, deadline: float, *, ephemeral: bool
    ) -> int | None:
        """In one step."""
        return await self._asked(self.requests.put(items, guard, deadline, ephemeral=ephemeral))

    async def delete(self, keys: Sequence[str], guard: KeyValue | None, deadline: float) -> bool:
        """In one step."""
        return await self._asked(self.requests.delete(keys, guard, deadline))

    async def list(self, prefix: str, deadline: float) -> tuple[Sequence[KeyValue], int]:
        return await self._asked(self.requests.find(prefix, deadline))

    async def watch(self, prefix: str, call: StoppableCall, after: int, deadline: float) -> Watched:
        watched = Watched(prefix, call)
        self.follower.add(watched)  # first: what happens while Redis answers is kept
        try:
            events: Sequence[Event]
            if after:
                events, revision = await self._asked(self.requests.since(prefix, after, deadline))
            else:
                held, revision = await self.list(prefix, deadline)
                events = [Event(each.key, each.value, each.revision) for each in held]
        except BaseException:
            self.follower.remove(watched)
            raise
        try:
            watched.begin(events, revision)
        except Exception as error:
            self.lose(ConnectionLost(f"the session with {self.name} ends: it may have missed an event: {error!r}"))
        return watched

    async def end_session(self, key: str, deadline: float) -> bool:
        """In one step."""
        return await self._asked(self.requests.evict(key, deadline))

    def unwatch(self, watched: Watched) -> None:
        self.follower.remove(watched)

    async def end(self, deadline: float) -> None:
        """What the last session of a run leaves is deleted."""
        await self.stop()
        await self._asked(self.requests.close(deadline))

    async def stop(self) -> None:
        """It asks nothing by itself any more."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def drop(self) -> None:
        await self.stop()
        if hasattr(self, "channel"):
            await self.channel.close()
        elif self._wire is not None:
            await self._wire.drop()
