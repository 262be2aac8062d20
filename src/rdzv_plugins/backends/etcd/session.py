"""A session with etcd, on the kit's thread: a lease that is kept alive, requests, and watches."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence

from rdzv_plugins.backends.etcd.cluster import Cluster
from rdzv_plugins.backends.etcd.connection import Dropped
from rdzv_plugins.backends.etcd.leases import KeepAlive, ensure, grant
from rdzv_plugins.backends.etcd.refusals import LeaseGone
from rdzv_plugins.backends.etcd.requests import Requests
from rdzv_plugins.backends.etcd.space import RUN_LEASE_S, Space
from rdzv_plugins.backends.etcd.watches import Watched, Watches
from rdzv_plugins.coordination import KeyValue
from rdzv_plugins.errors import ConnectionLost, EndpointUnreachable, RdzvError, RendezvousFailed
from rdzv_plugins.kit.loop import here
from rdzv_plugins.kit.session import AsyncSession, Closed
from rdzv_plugins.kvstore.coordination.reactor import StoppableCall

_GOOD_BYE_S = 1.0
"""Seconds to revoke a lease that was granted to a session that could not be opened."""


class EtcdSession(AsyncSession):
    """A session that lives as long as its lease, at whichever member answers.

    ``outage``: seconds for which no member may answer.
    """

    def __init__(self, cluster: Cluster, space: Space, outage: float) -> None:
        self.name = f"etcd at {cluster.name}"
        self._cluster, self._space, self._outage = cluster, space, outage
        self._watches = Watches(cluster, space, self._watching_failed)
        self._new_lease()
        self._keeping: KeepAlive | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def _new_lease(self) -> None:
        self._lease = secrets.randbits(63) or 1  # chosen here: a repeated request grants the same one
        self._requests = Requests(self._cluster, self._space, self._lease)

    @property
    def known_until(self) -> float:  # type: ignore[override]
        return self._keeping.known_until if self._keeping is not None else 0.0

    def why(self) -> str:
        return self._cluster.why()

    def problem(self, lead: str) -> EndpointUnreachable:
        return self._cluster.problem(lead)

    async def reach(self, deadline: float) -> None:
        await self._cluster.connection(deadline - here().monotonic())

    async def open(self, ttl: float, deadline: float) -> None:
        """Get a lease and announce that this session lives. etcd counts in whole seconds, and may grant more."""
        while True:
            try:
                await self._open(math.ceil(ttl), deadline)
                return
            except LeaseGone:  # before it was of use: either this process or etcd has stood still
                if here().monotonic() >= deadline:
                    raise
                self._new_lease()

    async def _open(self, ttl: int, deadline: float) -> None:
        granted = False
        try:
            connection = await self._cluster.connection(deadline - here().monotonic())
            self.local_addr, self.remote_addr = connection.local_addr, connection.remote_addr
            asked = here().now()
            self.ttl = float(await grant(self._cluster, self._lease, ttl, deadline))
            granted = True
            await ensure(self._cluster, self._space.run_lease, RUN_LEASE_S, deadline)
            await self._requests.enter(deadline)
        except BaseException:
            if granted:  # do not make others wait for its end
                with contextlib.suppress(TimeoutError, Dropped, RendezvousFailed):
                    await self._requests.leave(here().monotonic() + _GOOD_BYE_S)
            raise
        self._cluster.proven = True
        self._keeping = keeping = KeepAlive(
            self._cluster, self._lease, self.ttl, self._space.run_lease, self._outage, granted=asked
        )
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep(keeping)), loop.create_task(self._watches.run())]

    async def _keep(self, keeping: KeepAlive) -> None:
        self.lose(await keeping.run())

    def _watching_failed(self, error: BaseException) -> None:
        if isinstance(error, RdzvError):
            self.lose(ConnectionLost(str(error), remedy=error.remedy))
        else:
            self.lose(ConnectionLost(f"the session with etcd ends, for it may have missed an event: {error!r}"))

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except Dropped:
            raise Closed from None
        except LeaseGone as error:
            raise (self._keeping.gone() if self._keeping is not None else error) from None

    async def create(self, key: str, value: bytes, deadline: float, *, ephemeral: bool) -> tuple[bool, KeyValue]:
        with self._asking():
            return await self._requests.create(key, value, deadline, ephemeral=ephemeral)

    async def put(
        self, items: Mapping[str, bytes], guard: KeyValue | None, deadline: float, *, ephemeral: bool
    ) -> int | None:
        """Put in transactions of at most 127 keys and 1 MiB."""
        with self._asking():
            return await self._requests.put(items, guard, deadline, ephemeral=ephemeral)

    async def delete(self, keys: Sequence[str], guard: KeyValue | None, deadline: float) -> bool:
        """Delete in transactions of at most 127 keys."""
        with self._asking():
            return await self._requests.delete(keys, guard, deadline)

    async def list(self, prefix: str, deadline: float) -> tuple[Sequence[KeyValue], int]:
        with self._asking():
            return await self._requests.list(prefix, deadline)

    async def watch(self, prefix: str, call: StoppableCall, after: int, deadline: float) -> Watched:
        """Watch ``prefix``. With ``after``, the known keys are those at that revision; otherwise those told first."""
        with self._asking():
            if after:
                watched = Watched(prefix, call, after + 1, await self._requests.names(prefix, after, deadline))
            else:
                held, revision = await self._requests.list(prefix, deadline)
                watched = Watched(prefix, call, revision + 1, set())
                self._watches.begin(watched, held)
            try:
                await asyncio.wait_for(self._watches.add(watched), deadline - here().monotonic())
                return watched
            except BaseException as error:
                self._watches.remove(watched)
                if isinstance(error, asyncio.TimeoutError):
                    raise TimeoutError(f"watching {prefix!r}: etcd has not answered in time ({self.why()})") from None
                raise

    async def end_session(self, key: str, deadline: float) -> bool:
        """End the session by revoking its lease, which the key carries."""
        with self._asking():
            return await self._requests.end_owner(key, deadline)

    def unwatch(self, watched: Watched) -> None:
        self._watches.remove(watched)

    async def end(self, deadline: float) -> None:
        """End the lease first, so that others know; then delete what the last session leaves."""
        self._stop()
        with self._asking():
            await self._requests.leave(deadline)

    async def drop(self) -> None:
        self._stop()
        await self._cluster.close()

    def _stop(self) -> None:
        tasks, self._tasks = self._tasks, []  # a task that is kept keeps what its streams held: sockets
        for task in tasks:
            task.cancel()
