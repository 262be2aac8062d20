"""The watches of a session: one stream, which follows the session from member to member and misses nothing.

On the loop's thread only. A stream that breaks is opened again with each watch at the revision behind the last one
that it was told. If etcd has forgotten that by then (compaction), what is there now is compared with what was known.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Callable, Sequence
from typing import Any

from rdzv_plugins.backends.etcd.api import grpc, rpc
from rdzv_plugins.backends.etcd.cluster import Cluster
from rdzv_plugins.backends.etcd.connection import Connection, Dropped
from rdzv_plugins.backends.etcd.leases import TROUBLE, trouble
from rdzv_plugins.backends.etcd.space import Space, watch_request
from rdzv_plugins.coordination import Event, KeyValue
from rdzv_plugins.kvstore.stoppable import StoppableCall

logger = logging.getLogger(__name__)

_COMPARE_S = 10.0
_PATIENCE_S = 3600.0
"""Between two members the lease's own patience decides when to give up."""


class Watched:
    """One watch. ``start`` is the first revision that it has not been told of."""

    def __init__(self, prefix: str, call: StoppableCall, start: int, known: set[str]) -> None:
        self.prefix, self.call, self.start, self.known = prefix, call, start, known
        self.number: int | None = None
        """Of this watch on the stream; None: etcd has not said it yet."""
        self.refused = False
        """Once already, which may have been an old token."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(self, events: Sequence[Event], revision: int) -> None:
        """Pass ``events`` on; all up to ``revision`` is known then."""
        self.start = revision + 1
        for event in events:
            (self.known.discard if event.value is None else self.known.add)(event.key)
        if events:
            self.call(events)


class Watches:
    """``run`` serves the stream; ``failed`` is told of an error of a call-back, which has missed an event then."""

    def __init__(self, cluster: Cluster, space: Space, failed: Callable[[Exception], None]) -> None:
        self._cluster, self._space, self._failed = cluster, space, failed
        self._all: list[Watched] = []
        self._wanted = asyncio.Event()
        self._stream: tuple[Connection, Any] | None = None
        self._writing = asyncio.Lock()
        self._asked: collections.deque[Watched] = collections.deque()  # in this order etcd says their numbers

    def begin(self, watched: Watched, held: Sequence[KeyValue]) -> None:
        """Tell what is there when it begins."""
        self._tell(watched, [Event(kv.key, kv.value, kv.revision) for kv in held], watched.start - 1)

    async def add(self, watched: Watched) -> None:
        """Returns once etcd watches. Raises ``AccessRefused``, and ``Dropped`` when the session ends."""
        self._all.append(watched)
        self._wanted.set()
        if self._stream is not None:
            try:
                await self._ask(*self._stream, watched)
            except TROUBLE as error:
                logger.debug("a watch is asked for again: %s", error)  # by run, with the next stream
        await watched.ready

    async def remove(self, watched: Watched) -> None:
        """It is not called any more; etcd is told if that is possible now."""
        if watched not in self._all:
            return
        self._all.remove(watched)
        if self._stream is not None and watched.number is not None:
            await self._cancel(watched.number)

    async def _cancel(self, number: int) -> None:
        request = rpc.WatchRequest(cancel_request=rpc.WatchCancelRequest(watch_id=number))
        if self._stream is not None:
            connection, stream = self._stream
            try:
                async with self._writing:
                    await connection.answer(stream.write(request))
            except TROUBLE as error:
                logger.debug("a watch ends with its stream: %s", error)

    async def run(self) -> None:
        """Until it is cancelled, or the session closed."""
        try:
            await self._run()
        finally:
            for watched in self._all:
                if not watched.ready.done():
                    watched.ready.set_exception(Dropped("the session has ended"))

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            try:
                connection = await self._cluster.connection(_PATIENCE_S)
            except (TimeoutError, Dropped):
                if self._cluster.closed:
                    return
                continue
            try:
                await self._serve(connection, connection.stream("Watch/Watch"))
            except TROUBLE as error:
                await self._cluster.leave(connection, trouble(error))
            del connection

    async def _serve(self, connection: Connection, stream: Any) -> None:
        try:
            await self._follow(connection, stream)
        finally:
            self._stream = None
            stream.cancel()

    async def _follow(self, connection: Connection, stream: Any) -> None:
        self._asked.clear()
        for watched in self._all:
            watched.number = None
        self._stream = connection, stream
        for watched in list(self._all):
            await self._ask(connection, stream, watched)
        while True:
            answer = await connection.answer(stream.read())
            if answer is grpc.aio.EOF:
                raise Dropped("it has hung up")
            if answer.created:
                await self._created(self._asked.popleft(), answer)
            else:
                await self._told(connection, stream, answer)

    async def _ask(self, connection: Connection, stream: Any, watched: Watched) -> None:
        async with self._writing:
            if self._stream is None or self._stream[1] is not stream:  # whoever opens the next one asks for all
                return
            if watched in self._asked or watched.number is not None or watched not in self._all:
                return
            self._asked.append(watched)
            await connection.answer(stream.write(watch_request(self._space.full(watched.prefix), watched.start)))

    async def _created(self, watched: Watched, answer: Any) -> None:
        if answer.canceled:
            if watched.refused or not self._cluster.has_user:
                self._all.remove(watched)
                if not watched.ready.done():
                    watched.ready.set_exception(self._cluster.denied(answer.cancel_reason))
                return
            watched.refused = True  # the stream's token may be too old: the next one has a new one
            raise Dropped(answer.cancel_reason or "a watch was refused")
        watched.refused = False
        if watched not in self._all:  # removed meanwhile
            await self._cancel(answer.watch_id)
            return
        watched.number = answer.watch_id
        if not watched.ready.done():
            watched.ready.set_result(None)

    async def _told(self, connection: Connection, stream: Any, answer: Any) -> None:
        watched = next((each for each in self._all if each.number == answer.watch_id), None)
        if watched is None:
            return
        if answer.canceled:
            if not answer.compact_revision:
                raise Dropped(answer.cancel_reason or "it has cancelled a watch")
            await self._compare(connection, watched)
            watched.number = None
            await self._ask(connection, stream, watched)
        elif answer.events:
            self._tell(watched, list(self._space.events(answer)), answer.events[-1].kv.mod_revision)

    async def _compare(self, connection: Connection, watched: Watched) -> None:
        """What has changed since, as far as it can be seen from what is there now."""
        request = self._space.all(watched.prefix)
        answer = await connection.answer(connection.unary("KV/Range", request, _COMPARE_S))
        held = self._space.held(answer)
        revision = answer.header.revision
        gone = watched.known - {kv.key for kv in held}
        events = [Event(key, None, watched.start) for key in sorted(gone)]  # then, or later
        events += [Event(kv.key, kv.value, kv.revision) for kv in held if kv.revision >= watched.start]
        self._tell(watched, events, revision)

    def _tell(self, watched: Watched, events: Sequence[Event], revision: int) -> None:
        try:
            watched.tell(events, revision)
        except Exception as error:
            logger.exception("a watch's call-back has failed")
            self._failed(error)
