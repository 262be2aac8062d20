"""A session with etcd: a lease that is kept alive, requests, and watches, from any thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rdzv_plugins.backends.etcd.cluster import Cluster
from rdzv_plugins.backends.etcd.connection import Dropped
from rdzv_plugins.backends.etcd.leases import KeepAlive, ensure, grant
from rdzv_plugins.backends.etcd.loop import LoopThread
from rdzv_plugins.backends.etcd.refusals import LeaseGone
from rdzv_plugins.backends.etcd.requests import Requests
from rdzv_plugins.backends.etcd.space import RUN_LEASE_S, Space
from rdzv_plugins.backends.etcd.watches import Watched, Watches
from rdzv_plugins.coordination import KeyValue, OnEvents
from rdzv_plugins.errors import ConnectionLost, EndpointUnreachable, RdzvError, RendezvousFailed
from rdzv_plugins.kvstore.stoppable import StoppableCall

T = TypeVar("T")

_GOOD_BYE_S = 2.0
"""A lease that cannot be revoked within this time ends by itself."""


class _Watch:
    def __init__(self, session: EtcdSession, watched: Watched) -> None:
        self._session, self._watched = session, watched

    def cancel(self) -> None:
        """As ``Watch.cancel``; waits for a call that runs, so hold no lock that it takes."""
        self._session._unwatch(self._watched)


class EtcdSession:
    """A ``Session``. Opened by ``EtcdCoordination``; it lives as long as its lease, at whichever member answers."""

    def __init__(
        self,
        loop: LoopThread,
        cluster: Cluster,
        space: Space,
        on_lost: Callable[[ConnectionLost], None],
        on_over: Callable[[EtcdSession], object],
    ) -> None:
        """On the loop's thread."""
        self._loop, self._cluster, self._space, self._on_over = loop, cluster, space, on_over
        self._watches = Watches(cluster, space, self._watching_failed)
        self._on_lost = StoppableCall(on_lost)
        self._lease = secrets.randbits(63) or 1  # chosen here: a request that is repeated grants the same one
        self._requests = Requests(cluster, space, self._lease)
        self._ttl = 0.0
        self._addresses = ("", "")
        self._keeping: KeepAlive | None = None
        self._over: ConnectionLost | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._calls: list[StoppableCall] = []
        self._pid = os.getpid()

    async def open(self, ttl: int, outage: float, deadline: float) -> None:
        """Get a lease and say that this session lives. Called once, on the loop's thread."""
        try:
            await self._open(ttl, outage, deadline)
        except BaseException:
            if self._ttl:  # others are not to wait for its end
                with contextlib.suppress(TimeoutError, Dropped, RendezvousFailed):
                    await self._requests.leave(time.monotonic() + _GOOD_BYE_S / 2)
            raise

    async def _open(self, ttl: int, outage: float, deadline: float) -> None:
        connection = await self._cluster.connection(deadline - time.monotonic())
        self._addresses = connection.local_addr, connection.remote_addr
        self._ttl = float(await grant(self._cluster, self._lease, ttl, deadline))
        await ensure(self._cluster, self._space.run_lease, RUN_LEASE_S, deadline)
        await self._requests.enter(deadline)
        self._cluster.proven = True
        self._keeping = KeepAlive(self._cluster, self._lease, self._ttl, self._space.run_lease, outage)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep(self._keeping)), loop.create_task(self._watches.run())]

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
        """As ``Session.put``, in transactions of at most 127 keys and 1 MiB."""
        return self._ask(lambda deadline: self._requests.put(items, guard, deadline, ephemeral=ephemeral), timeout)

    def delete(self, keys: Iterable[str], *, guard: KeyValue | None = None, timeout: float) -> bool:
        """As ``Session.delete``, in transactions of at most 127 keys."""
        names = tuple(keys)
        return self._ask(lambda deadline: self._requests.delete(names, guard, deadline), timeout)

    def list(self, prefix: str, *, timeout: float) -> tuple[Sequence[KeyValue], int]:
        return self._ask(lambda deadline: self._requests.list(prefix, deadline), timeout)

    def watch(self, prefix: str, on_events: OnEvents, *, after: int = 0, timeout: float) -> _Watch:
        """As ``Session.watch``. An error of ``on_events`` ends the session: it has missed an event."""
        call = StoppableCall(on_events)
        watched = self._ask(lambda deadline: self._watch(prefix, call, after, deadline), timeout)
        return _Watch(self, watched)

    def close(self) -> None:
        """As ``Session.close``; waits for a call-back that runs, so hold no lock that it takes. None begins after."""
        self._end(f"the session with etcd at {self._cluster.name} has been closed", revoke=True)

    def abandon(self) -> None:
        """End as a process that is killed does: etcd is not told, and waits for the lease to run out."""
        self._end(f"the session with etcd at {self._cluster.name} has been abandoned", revoke=False)

    def _end(self, reason: str, *, revoke: bool) -> None:
        if self._pid != os.getpid():  # the loop's thread, and all that it did, is the parent's
            return
        first = self._over is None
        if first:
            self._over = ConnectionLost(reason)
        if self._loop.is_current():  # from a call-back of this or another session
            self._loop.start(self.end(revoke=revoke and first))
        else:
            with contextlib.suppress(TimeoutError):
                self._loop.run(self.end(revoke=revoke and first), _GOOD_BYE_S)
        for call in (self._on_lost, *self._calls):
            call.stop()

    async def end(self, *, revoke: bool) -> None:
        """The lease first: then others know, and then what the last session leaves is deleted."""
        self._on_over(self)
        self._stop_tasks()
        try:
            if revoke and self._ttl:
                await self._requests.leave(time.monotonic() + _GOOD_BYE_S * 0.9)
        except (TimeoutError, Dropped, RendezvousFailed):
            pass  # its keys go with the lease
        finally:
            await self._cluster.close()

    def _stop_tasks(self) -> None:
        """All but the one that asks for it."""
        tasks, self._tasks = self._tasks, []  # a task that is kept keeps what its streams held: sockets
        for task in tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def _keep(self, keeping: KeepAlive) -> None:
        await self._lose(await keeping.run())

    async def _lose(self, error: ConnectionLost) -> None:
        if self._over is None:
            self._over = error
            self._on_over(self)
            self._stop_tasks()
            await self._cluster.close()
            self._on_lost(error)

    def _watching_failed(self, error: BaseException) -> None:
        if isinstance(error, RdzvError):
            lost = ConnectionLost(str(error), remedy=error.remedy)
        else:
            lost = ConnectionLost(f"the session with etcd ends, for it may have missed an event: {error!r}")
        self._loop.start(self._lose(lost))

    async def _watch(self, prefix: str, call: StoppableCall, after: int, deadline: float) -> Watched:
        """Which keys were known: at ``after`` to the caller, else those that it is told of first."""
        self._calls.append(call)
        if after:
            watched = Watched(prefix, call, after + 1, await self._requests.names(prefix, after, deadline))
        else:
            held, revision = await self._requests.list(prefix, deadline)
            watched = Watched(prefix, call, revision + 1, set())
            self._watches.begin(watched, held)
        try:
            await asyncio.wait_for(self._watches.add(watched), deadline - time.monotonic())
            return watched
        except BaseException as error:
            self._watches.remove(watched)
            self._calls.remove(call)
            if isinstance(error, asyncio.TimeoutError):
                raise TimeoutError(
                    f"watching {prefix!r}: etcd has not answered in time ({self._cluster.why()})"
                ) from None
            raise

    def _unwatch(self, watched: Watched) -> None:
        if self._pid != os.getpid():
            return
        if self._over is None:
            self._loop.soon(self._watches.remove, watched)
        watched.call.stop()
        with contextlib.suppress(ValueError):  # cancelled before
            self._calls.remove(watched.call)

    def _ask(self, work: Callable[[float], Coroutine[Any, Any, T]], timeout: float) -> T:
        """What the coroutine returns, within ``timeout`` seconds. From any thread but the loop's."""
        if self._pid != os.getpid():
            raise ConnectionLost(f"the session with etcd at {self._cluster.name} belongs to the parent of this process")
        if self._over is not None:
            raise self._lost()
        try:
            return self._loop.run(work(time.monotonic() + timeout), timeout)
        except Dropped:
            raise self._lost() from None
        except EndpointUnreachable as error:  # nothing else will be done either
            known = self._keeping.gone() if isinstance(error, LeaseGone) and self._keeping is not None else None
            lost = known or ConnectionLost(str(error), remedy=error.remedy)
            self._loop.start(self._lose(lost))
            raise lost from None

    def _lost(self) -> ConnectionLost:
        over = self._over or ConnectionLost("the session with etcd is over")
        error = ConnectionLost(str(over), remedy=over.remedy)
        error.silent = over.silent
        return error
