"""The watches of a session: one connection that reads the run's stream of changes, and misses none.

On the loop's thread only. Revisions in the stream have no gaps, so that whoever misses one sees it. Each entry names
the identity of the one before, so that whoever is told of another history sees that, too: Redis may have lost its last
changes, and have given their revisions to others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from rdzv_plugins import Event
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.kit import StoppableCall, name_of

from rdzv_redis.server import TROUBLE, Server
from rdzv_redis.space import entry
from rdzv_redis.wire import Wire

logger = logging.getLogger(__name__)

_AT_ONCE = 1000
"""Entries in one answer."""
_PATIENCE_S = 3600.0
"""Between two connections it is the keeper that decides when to give up."""
_LATE_S = 5.0
"""A change of which this connection has not told for so long will not come by it any more."""
_PAUSE_S = 0.2


class Watched:
    """One watch. Until it is begun, what happens is kept for it."""

    def __init__(self, prefix: str, call: StoppableCall) -> None:
        self.prefix, self.call = prefix, call
        self._start = 0
        self._kept: list[Event] | None = []

    def begin(self, events: Sequence[Event], revision: int) -> None:
        """It is told ``events``, which is all up to ``revision``, and then what has happened since."""
        later, self._kept, self._start = self._kept or [], None, revision
        self.tell([*events, *(each for each in later if each.revision > revision)])

    def take(self, events: Sequence[Event]) -> None:
        """What has happened, to keys of any name."""
        mine = [each for each in events if each.revision > self._start and each.key.startswith(self.prefix)]
        if self._kept is not None:
            self._kept += mine
        else:
            self.tell(mine)

    def tell(self, events: Sequence[Event]) -> None:
        if events:
            self.call(events)


class Follower:
    """``run`` follows ``stream`` from the change of that revision and identity on; it returns why it cannot go on.

    ``on_change``: that one is known now. ``on_ttl``: a session lives so short, in seconds. ``on_another_history``: says
    why what comes does not follow what is known.
    """

    def __init__(self, server: Server, stream: str, position: int, identity: bytes) -> None:
        self._server, self._stream, self._position, self._identity = server, stream, position, identity
        self._wire: Wire | None = None
        self._read_at = time.monotonic()
        self._watches: list[Watched] = []
        self.on_change: Callable[[int, bytes], None] = lambda _, __: None
        self.on_another_history: Callable[[], ConnectionLost] = lambda: ConnectionLost("data are lost")
        self.on_ttl: Callable[[float], None] = lambda _: None

    def add(self, watched: Watched) -> None:
        """From now on it is told."""
        self._watches.append(watched)

    def remove(self, watched: Watched) -> None:
        """It is not called any more. May be repeated."""
        if watched in self._watches:
            self._watches.remove(watched)

    def expect(self, revision: int) -> None:
        """Redis is there already. If this connection does not bring it, it is dead, whatever it looks like."""
        if self._position >= revision:
            self._read_at = time.monotonic()
        elif time.monotonic() - self._read_at > _LATE_S:
            self.renew()

    def renew(self) -> None:
        """Take another connection."""
        self._read_at = time.monotonic()
        if self._wire is not None:
            self._wire.abort()

    async def run(self) -> ConnectionLost:
        """Until it is cancelled, or a change was missed, or a call-back has failed."""
        while True:
            try:
                wire = self._wire = await self._server.connect(time.monotonic() + _PATIENCE_S)
            except TimeoutError:
                continue
            try:
                while True:
                    command = ("XREAD", "COUNT", _AT_ONCE, "BLOCK", 0, "STREAMS", self._stream, f"{self._position}-0")
                    for _, entries in await wire.ask(*command) or ():
                        self._take(entries)
            except _AnotherHistory:
                return self.on_another_history()
            except _Missed as error:
                return ConnectionLost(str(error))
            except TROUBLE as error:
                logger.debug("the watches of %s need another connection: %s", self._server.name, error)
            except Exception as error:
                logger.exception("a watch's call-back has failed")
                return ConnectionLost(
                    f"the session with {self._server.name} ends: it may have missed an event: {error!r}"
                )
            finally:
                self._wire = None
                await wire.drop()
            await asyncio.sleep(_PAUSE_S)

    def _take(self, raw: Sequence[Any]) -> None:
        self._read_at = time.monotonic()
        events: list[Event] = []
        for each in raw:
            revision, fields = entry(each)
            if revision != self._position + 1:
                raise _Missed(
                    f"the session with {self._server.name} has missed the changes {self._position + 1} to "
                    f"{revision - 1}: Redis has forgotten them, or this node was too slow to take them"
                )
            if fields[b"p"] != self._identity:
                raise _AnotherHistory
            self._position, self._identity = revision, fields[b"i"]
            if b"k" in fields:
                if (name := name_of(fields[b"k"])) is not None:
                    events.append(Event(name, fields.get(b"v"), revision))
            elif b"ttl" in fields:
                self.on_ttl(int(fields[b"ttl"]) / 1000)
        self.on_change(self._position, self._identity)  # first: what is told may be used as a guard
        try:
            for watched in list(self._watches):
                watched.take(events)
        except TROUBLE as error:  # of a call-back, and none of ours
            raise RuntimeError(repr(error)) from error


class _Missed(Exception):
    pass


class _AnotherHistory(Exception):
    pass
