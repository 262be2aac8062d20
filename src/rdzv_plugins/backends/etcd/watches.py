"""The watches of a session: one stream, which follows the session from member to member and misses nothing.

On the loop's thread only. A stream that breaks is opened again, with each watch at the revision after the last one that
it was told of. If etcd has forgotten that by then (compaction), what exists now is compared with what was known.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Callable, Sequence
from typing import Any

from rdzv_plugins.backends.etcd.api import rpc
from rdzv_plugins.backends.etcd.cluster import Cluster
from rdzv_plugins.backends.etcd.connection import TROUBLE, Connection, Dropped, Stream, trouble
from rdzv_plugins.backends.etcd.space import Space, watch_request
from rdzv_plugins.coordination import Event, KeyValue
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.kvstore.coordination.reactor import StoppableCall

logger = logging.getLogger(__name__)

_COMPARE_S = 10.0
_PATIENCE_S = 3600.0
"""Between two members, the lease's own patience decides when to give up."""


class Watched:
    """One watch. ``start`` is the first revision that it has not been told of."""

    def __init__(self, prefix: str, call: StoppableCall, start: int, known: set[str]) -> None:
        self.prefix, self.call, self.start, self.known = prefix, call, start, known
        self.number: int | None = None
        """The number of this watch on the stream; None while etcd has not told it yet."""
        self.refused = False
        """Whether it was refused once already, which may have been due to an old token."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(self, events: Sequence[Event], revision: int) -> None:
        """Pass ``events`` on; everything up to ``revision`` is then known."""
        self.start = revision + 1
        for event in events:
            (self.known.discard if event.value is None else self.known.add)(event.key)
        if events:
            self.call(events)


class _NewToken(Exception):
    """The stream has to be opened again, with another token."""


class Watches:
    """The watches of a session, which ``run`` serves.

    ``failed`` is told of an error in a call-back, which has then missed an event. Only ``run`` touches the stream: gRPC
    ends a stream when a task that writes to it is cancelled, and a task that asks for a watch may be cancelled.
    """

    def __init__(self, cluster: Cluster, space: Space, failed: Callable[[BaseException], None]) -> None:
        self._cluster, self._space, self._failed = cluster, space, failed
        self._all: list[Watched] = []
        self._cancelled: list[int] = []
        self._changed = asyncio.Event()  # there is something to write

    def begin(self, watched: Watched, held: Sequence[KeyValue]) -> None:
        """Tell what exists when it begins."""
        self._tell(watched, [Event(kv.key, kv.value, kv.revision) for kv in held], watched.start - 1)

    async def add(self, watched: Watched) -> None:
        """Return once etcd watches. Raises ``AccessRefused``, and ``Dropped`` when the session ends."""
        self._all.append(watched)
        self._changed.set()
        await watched.ready

    def remove(self, watched: Watched) -> None:
        """Stop calling it, and tell etcd."""
        if watched in self._all:
            self._all.remove(watched)
            self._cancel(watched.number)

    def _cancel(self, number: int | None) -> None:
        if number is not None:
            self._cancelled.append(number)
            self._changed.set()

    async def run(self) -> None:
        """Run until cancelled, or until the session is closed."""
        try:
            await self._changed.wait()
            while not self._cluster.closed:
                await self._follow()
        except asyncio.CancelledError as error:  # by close, or by nobody that we know of
            self._failed(error)
            raise
        except RdzvError as error:
            self._failed(error)
        except Exception as error:
            logger.exception("following the watches has failed")
            self._failed(error)
        finally:
            for watched in self._all:
                if not watched.ready.done():
                    watched.ready.set_exception(Dropped("the session has ended"))

    async def _follow(self) -> None:
        """Serve one stream, from beginning to end."""
        try:
            connection = await self._cluster.connection(_PATIENCE_S)
        except (TimeoutError, Dropped):  # after an hour, or closed
            return
        try:
            stream = await self._cluster.stream(connection, "Watch/Watch")
            token = connection.token
            asked: collections.deque[Watched] = collections.deque()  # etcd tells their numbers in this order
            for watched in self._all:
                watched.number = None
            self._cancelled.clear()
            self._changed.set()
            writing = asyncio.get_running_loop().create_task(self._write(connection, stream, asked))
            writing.add_done_callback(self._writer_ended)
            try:
                while True:
                    answer = await stream.read()
                    if answer.created:
                        self._created(asked.popleft(), answer)
                    else:
                        await self._told(connection, answer)
            finally:
                writing.cancel()
                stream.close()
        except _NewToken:
            connection.forget_login(token)
        except TROUBLE as error:
            await self._cluster.leave(connection, trouble(error))

    async def _write(self, connection: Connection, stream: Stream, asked: collections.deque[Watched]) -> None:
        """Write what there is to write, whenever there is something."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                for watched in list(self._all):
                    if watched.number is None and watched not in asked:
                        asked.append(watched)
                        request = watch_request(self._space.full(watched.prefix), watched.start)
                        await stream.write(request)
                while self._cancelled:
                    request = rpc.WatchCancelRequest(watch_id=self._cancelled.pop())
                    await stream.write(rpc.WatchRequest(cancel_request=request))
        except TROUBLE as error:
            await self._cluster.leave(connection, trouble(error))  # the reader will notice

    def _writer_ended(self, writing: asyncio.Task[None]) -> None:
        if not writing.cancelled() and (error := writing.exception()) is not None:
            self._failed(error)

    def _created(self, watched: Watched, answer: Any) -> None:
        if answer.canceled:
            if watched.refused or not self._cluster.has_user:
                if watched in self._all:
                    self._all.remove(watched)
                error = self._cluster.denied(answer.cancel_reason)
                if watched.ready.done():  # it existed before, and nobody waits for it now
                    self._failed(error)
                else:
                    watched.ready.set_exception(error)
                return
            watched.refused = True  # the stream's token may be too old
            raise _NewToken
        watched.refused = False
        if watched not in self._all:  # removed in the meantime
            self._cancel(answer.watch_id)
            return
        watched.number = answer.watch_id
        if not watched.ready.done():
            watched.ready.set_result(None)

    async def _told(self, connection: Connection, answer: Any) -> None:
        watched = next((each for each in self._all if each.number == answer.watch_id), None)
        if watched is None:
            return
        if answer.canceled:
            if not answer.compact_revision:
                raise Dropped(answer.cancel_reason or "it has cancelled a watch")
            await self._compare(connection, watched)
            watched.number = None
            self._changed.set()
        elif answer.events:
            self._tell(watched, list(self._space.events(answer)), answer.events[-1].kv.mod_revision)

    async def _compare(self, connection: Connection, watched: Watched) -> None:
        """Tell what has changed since, as far as that can be seen from what exists now."""
        request = self._space.all(watched.prefix)
        answer = await connection.unary("KV/Range", request, _COMPARE_S)
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
