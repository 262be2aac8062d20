"""``RedisClient``: what a session asks of Redis, and the stream of changes that it follows; the kit does the rest.

Revisions in the stream have no gaps, so that whoever misses one sees it. Each entry names the identity of the one
before, so that whoever is told of another history sees that, too: Redis may have lost its last changes, and have given
their revisions to others.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from rdzv_plugins import Event, KeyValue
from rdzv_plugins.clock import now
from rdzv_plugins.errors import Compacted, ConnectionLost, EndpointUnreachable
from rdzv_plugins.kit import (
    SILENT,
    TIMEOUTS,
    Reason,
    Security,
    ServiceClient,
    SessionEnded,
    Unusable,
    in_thread,
    looked_at,
    name_of,
    within,
)
from redis.exceptions import RedisError

from rdzv_redis import Target
from rdzv_redis.refusals import LIMIT_S, STRANGE, diagnose, reason_of
from rdzv_redis.wire import Wire

_PER_TTL = 4
"""So often within the shortest time to live of a run a node says that it lives: others notice its end in time."""
_FIRST_ATTEMPT_S = 2.0
"""To connect; then longer. With a diagnosis it is less than the kit allows."""
_LONGEST_ATTEMPT_S = 8.0
_AT_ONCE = 1000
"""Entries in one answer, and changes that are remembered for watches that take them later."""
_LATE_S = 5.0
"""A change of which the stream's connection has not told for so long will not come by it any more."""
_NOBODY = b"-"  # the owner of a key that belongs to no session


class Space:
    """The keys of run ``run_id`` under ``prefix``."""

    def __init__(self, prefix: str, run_id: str) -> None:
        self.prefix = prefix
        path = f"{prefix}/{quote(run_id, safe='')}/"  # no id is the beginning of another's path
        names = ("state", "values", "names", "events", "sessions", "owners", "answers")
        self.keys = [path + name for name in names]
        self.events = f"{path}events"  # the stream of the changes


def held(key: str, packed: bytes) -> KeyValue:
    """A key as ``run.lua`` keeps it: revision, owner and value."""
    revision, _, value = packed.split(b" ", 2)
    return KeyValue(key, value, int(revision))


def listed(flat: Sequence[bytes]) -> list[KeyValue]:
    """The keys of a list, in the order of their revisions."""
    named = ((name_of(key), packed) for key, packed in zip(flat[::2], flat[1::2], strict=True))
    found = [held(name, packed) for name, packed in named if name is not None]
    return sorted(found, key=lambda each: each.revision)


def entry(raw: Sequence[Any]) -> tuple[int, dict[bytes, bytes], Event | None]:
    """Revision and fields of an entry of the stream, and the change that it tells of: none if it is of no key."""
    number, flat = raw
    revision, fields = int(number.partition(b"-")[0]), dict(zip(flat[::2], flat[1::2], strict=True))
    name = name_of(fields[b"k"]) if b"k" in fields else None
    return revision, fields, None if name is None else Event(name, fields.get(b"v"), revision)


class RedisClient(ServiceClient):
    """One session. Each request is one call of ``run.lua``, by one connection; the changes come by another."""

    service = "Redis"
    security: Security

    def __init__(self, target: Target, security: Security, space: Space, outage: float) -> None:
        """``outage``: seconds without an answer to put up with."""
        super().__init__()
        self.address, self.security = str(target.endpoint), security
        self._name = f"Redis at {target.endpoint}"
        self._target, self._space, self._outage = target, space, outage
        self._attempt = _FIRST_ATTEMPT_S
        self._wire: Wire | None = None
        self._epoch, self._ttl = secrets.token_hex(8), 0.0
        self._opened = False
        self._seen, self._identity = 0, b""  # the last change that this session knows
        self._kept = -math.inf  # when the newest answered keep-alive was sent
        self._shortest = math.inf  # the shortest time to live of a session of the run, in seconds
        self._shorter = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._read_at = 0.0
        self._position, self._read = 0, b""  # the last change that the stream has told, and its identity
        self._news = asyncio.Event()  # there is more, or reading has ended
        self._recent: deque[Event] = deque()
        self._forgotten = 0  # up to this revision

    async def connect(self) -> None:
        """Connect, log in, and see what it is; then follow the changes, if the session is open."""
        wire = self._wire = Wire(self._target, self.security)
        try:
            await within(self._attempt, wire.open())
        except TIMEOUTS as error:
            self._attempt = min(self._attempt * 1.5, _LONGEST_ATTEMPT_S)
            if wire.remote_addr or self.security.tls:
                await self._diagnose(error)
            raise
        except (RedisError, OSError, EOFError) as error:
            reason = reason_of(error, self.security, self._space.prefix)
            if reason == STRANGE or not reason.remedy:
                await self._diagnose(error)
            raise Unusable(reason) from error
        finally:
            self.local_addr, self.remote_addr = wire.local_addr, wire.remote_addr
            if self.security.tls:  # which does not show whether it was reached
                self.remote_addr = self.remote_addr or self._target.endpoint.host
        self._attempt = _FIRST_ATTEMPT_S
        if self._opened:
            self._follow()

    async def _diagnose(self, error: Exception) -> None:
        """Raise ``Unusable`` if that can tell more than ``error``. What was right once is not doubted."""
        if not self._opened:
            found = in_thread(lambda: diagnose(self._target.endpoint, tls=self.security.tls))
            with contextlib.suppress(*TIMEOUTS):
                if (reason := await within(LIMIT_S, found)) is not None:
                    raise Unusable(reason) from error

    async def disconnect(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.drop()

    def reason_of(self, error: Exception) -> Reason | None:
        """What Redis has said, or redis-py."""
        cause = error.__cause__
        if isinstance(cause, Unusable):
            return cause.reason
        if isinstance(cause, RedisError):
            return reason_of(cause, self.security, self._space.prefix)
        return SILENT if isinstance(cause, TIMEOUTS) else None

    async def open(self, ttl: float) -> float:
        asked, patience = now(), max(self._outage, ttl)
        times = (round(seconds * 1000) for seconds in (ttl, patience))
        _, revision, identity, epoch, shortest = await self._ask("open", *times)
        self._ttl, self._epoch, self._kept = ttl, epoch.decode(), asked
        self._position = self._forgotten = self._seen = int(revision)
        self._read = self._identity = identity
        self._note_ttl(shortest)
        self._opened = True
        self._follow()
        return ttl

    async def keep_alive(self) -> None:
        """Live on, and let those end who do not."""
        asked = now()
        _, revision, _, shortest = await self._ask("keep")
        self._kept = asked
        self._note_ttl(shortest)
        self._check_reading()
        if self._position >= int(revision):
            self._read_at = now()
        elif now() - self._read_at > _LATE_S:
            raise EOFError("its connection for the changes is dead, whatever it looks like")

    async def keep_alive_due(self) -> None:
        """As often as the shortest-lived session of the run needs it."""
        while (left := self._kept + self._shortest / _PER_TTL - now()) > 0:
            self._shorter.clear()
            with contextlib.suppress(*TIMEOUTS):
                await within(left, self._shorter.wait())

    def _note_ttl(self, shortest: bytes) -> None:
        """A session lives so short, in milliseconds."""
        self._shortest = min(self._shortest, int(shortest) / 1000)
        self._shorter.set()

    async def end(self) -> None:
        """What the last session of a run leaves is deleted."""
        await self._ask("close")

    async def end_session(self, key: str) -> bool:
        """In one step."""
        return bool((await self._ask("evict", key))[3] == b"1")

    async def create(self, number: int, key: str, value: bytes, *, ephemeral: bool) -> tuple[bool, KeyValue]:
        _, revision, _, there = await self._change("create", number, None, ephemeral, [key, value])
        return (False, held(key, there)) if there else (True, KeyValue(key, value, int(revision)))

    async def put(
        self, number: int, items: Mapping[str, bytes], *, ephemeral: bool, guard: KeyValue | None
    ) -> int | None:
        """In one step."""
        answer = await self._change("put", number, guard, ephemeral, [part for item in items.items() for part in item])
        return int(answer[1]) if answer[0] == b"OK" else None

    async def delete(self, number: int, keys: Sequence[str], *, guard: KeyValue | None) -> bool:
        """In one step."""
        return bool((await self._change("delete", number, guard, False, keys))[0] == b"OK")

    async def list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        answer = await self._ask("list", prefix)
        return listed(answer[3:]), int(answer[1])

    async def watch(self, prefix: str, after: int) -> AsyncIterator[tuple[Sequence[Event], int]]:
        """Of the changes that come anyway; only what came before them is asked for."""
        while True:
            if after < self._forgotten:
                events, after = await self._since(prefix, after)
            else:
                events = [each for each in self._recent if each.revision > after and each.key.startswith(prefix)]
                after = max(after, self._position)
            yield events, after
            while self._position <= after:
                self._check_reading()
                await self._news.wait()

    async def _since(self, prefix: str, after: int) -> tuple[Sequence[Event], int]:
        answer = await self._ask("since", prefix, after)
        if answer[0] == b"COMPACTED":
            raise Compacted(
                f"watching {prefix!r}: Redis has forgotten what happened after revision {after}: "
                f"it knows what came from {int(answer[1])} on",
                remedy="List the keys, and watch after the revision of that answer.",
            )
        changes = (entry(each)[2] for each in answer[3:])
        return [each for each in changes if each is not None], int(answer[1])

    def _follow(self) -> None:
        self._read_at = now()
        self._reading = asyncio.get_running_loop().create_task(self._read_changes())
        self._reading.add_done_callback(looked_at)  # whoever watches or keeps alive raises its error
        self._reading.add_done_callback(lambda _: self._tell())

    def _tell(self) -> None:
        """Whoever waits looks again."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _check_reading(self) -> None:
        """Raise what has ended the reading of changes, if something has."""
        if self._reading is None or self._reading.cancelled():
            raise EOFError
        if self._reading.done():
            self._reading.result()

    async def _read_changes(self) -> None:
        """Until it is cancelled, or a change was missed."""
        wire = Wire(self._target, self.security)
        try:
            await within(_LONGEST_ATTEMPT_S, wire.open())
            while True:
                start = f"{self._position}-0"
                found = await wire.ask("XREAD", "COUNT", _AT_ONCE, "BLOCK", 0, "STREAMS", self._space.events, start)
                for _, entries in found or ():
                    self._take(entries)
        except (RedisError, Unusable, *TIMEOUTS) as error:  # only another connection may help
            raise EOFError(str(error)) from error
        finally:
            await wire.drop()

    def _take(self, raw: Sequence[Any]) -> None:
        self._read_at = now()
        for each in raw:
            revision, fields, event = entry(each)
            if revision != self._position + 1:
                raise ConnectionLost(
                    f"the session with {self._name} has missed the changes {self._position + 1} to "
                    f"{revision - 1}: Redis has forgotten them, or this node was too slow to take them"
                )
            if fields[b"p"] != self._read:
                raise self._gone("LOST")  # or this process stood still, and all is of others
            self._position, self._read = revision, fields[b"i"]
            if event is not None:
                if len(self._recent) == _AT_ONCE:
                    self._forgotten = self._recent.popleft().revision
                self._recent.append(event)
            elif b"ttl" in fields:
                self._note_ttl(fields[b"ttl"])
        self._saw(self._position, self._read)  # first: what is told may be used as a guard
        self._tell()

    def _gone(self, how: str) -> Exception:
        """What to raise when Redis says that the session has ended. ``how``: LOST, BACK or OVER, see ``run.lua``."""
        if how == "BACK" or (how == "LOST" and now() - self._kept < max(self._outage, self._ttl)):
            return ConnectionLost(
                f"the session with {self._name} has ended: Redis has lost data of this run (it was started again "
                "without them, it was flushed, a replica that was behind took over, or it evicts keys)",
                remedy="Let Redis keep its data (appendonly yes, maxmemory-policy noeviction), and delete none of a "
                "run that goes on.",
            )
        return SessionEnded()

    def _saw(self, revision: int, identity: bytes) -> None:
        """This session knows of that change. Redis is told with each request, and compares: it may have lost it."""
        if revision > self._seen:
            self._seen, self._identity = revision, identity

    async def _change(
        self, what: str, number: int, guard: KeyValue | None, ephemeral: bool, rest: Sequence[Any]
    ) -> Sequence[Any]:
        condition = ("", "") if guard is None else (guard.key, guard.revision)
        return await self._ask(what, number, *condition, self.session if ephemeral else _NOBODY, *rest)

    async def _ask(self, operation: str, *rest: Any) -> Sequence[Any]:
        """What the script returns. What was sent is waited for even if nobody does: the answer is not for the next."""
        if (wire := self._wire) is None:
            raise EOFError
        await wire.turn.acquire()
        known = [operation, self.session, self._epoch, self._seen, self._identity]
        exchange = asyncio.ensure_future(wire.script(self._space.keys, [*known, *rest]))
        exchange.add_done_callback(looked_at)
        exchange.add_done_callback(lambda _: wire.turn.release())
        await asyncio.wait({exchange})  # which cancels nothing
        try:
            answer: Sequence[Any] = exchange.result()
        except RedisError as error:
            raise EOFError(str(error)) from error
        if answer[0] == b"GONE":
            raise self._gone(answer[1].decode())
        if answer[0] == b"STALE":
            raise EndpointUnreachable("Redis has been asked by two sessions of the same name")
        if answer[0] == b"OK":
            self._saw(int(answer[1]), answer[2])
        return answer
