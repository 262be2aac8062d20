"""Grants leases, and refreshes them. On the loop's thread only.

etcd ends a lease that was not refreshed within its time to live, by the clock of its leader alone; after an election
every lease has its full time again. So only etcd knows whether a lease lives: while no member answers, this node does
not know, and goes on for as long as the user allows (``kit.keeping``).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from rdzv_plugins.backends.etcd.api import grpc, rpc
from rdzv_plugins.backends.etcd.cluster import Cluster
from rdzv_plugins.backends.etcd.connection import LATE_S, TROUBLE, Connection, Dropped, Stream
from rdzv_plugins.backends.etcd.refusals import Verdict, reason_of, verdict
from rdzv_plugins.backends.etcd.space import RUN_LEASE_S
from rdzv_plugins.errors import ConnectionLost, RendezvousFailed
from rdzv_plugins.kit.keeping import PER_TTL
from rdzv_plugins.kit.loop import here

_ANSWER_S = 5.0
"""Only refreshing reveals that the way to a member is dead; the watches are deaf meanwhile."""
_LOGIN_PAUSE_S = 0.2


def trouble(error: Exception) -> str:
    """Why a lease could not be obtained or renewed, in words."""
    if isinstance(error, grpc.aio.AioRpcError):
        return reason_of(error)
    return "it does not answer" if isinstance(error, TimeoutError) else str(error) or "it has hung up"


async def grant(cluster: Cluster, lease: int, ttl: int, deadline: float) -> int:
    """Grant a lease of that number; returns its time to live in seconds, which may be more than was requested."""
    request = rpc.LeaseGrantRequest(TTL=ttl, ID=lease)
    try:
        answer, _ = await cluster.call("a lease", "Lease/LeaseGrant", request, deadline, writes=True)
    except RendezvousFailed as error:
        if "lease already exists" in str(error):  # by an attempt that got no answer, or by another node
            return ttl
        raise
    return int(answer.TTL)


async def ensure(cluster: Cluster, lease: int, ttl: int, deadline: float) -> None:
    """Ensure that there is a lease of that number. It may be about to end: refresh it soon."""
    request = rpc.LeaseTimeToLiveRequest(ID=lease)
    answer, _ = await cluster.call("the lease of the run", "Lease/LeaseTimeToLive", request, deadline)
    if answer.TTL <= 0:
        await grant(cluster, lease, ttl, deadline)


class Leases:
    """The lease of a session, and its run's: ``renew`` is for the kit's ``Keeper``.

    ``over`` makes the error with which a session ends when one of them is gone.
    """

    def __init__(
        self, cluster: Cluster, lease: int, ttl: float, run_lease: int, over: Callable[[], ConnectionLost]
    ) -> None:
        self._cluster, self._lease, self._ttl, self._run_lease, self._over = cluster, lease, ttl, run_lease, over
        self._answer_s = min(ttl / PER_TTL, _ANSWER_S)
        self._stream: tuple[Connection, Stream] | None = None
        self._asked = self._run_asked = -math.inf  # the run's may be about to end

    async def renew(self, deadline: float) -> None:
        """Refresh them at whichever member answers. Raises ``TimeoutError``, and ``ConnectionLost`` if one is gone."""
        while True:
            try:
                connection = await self._cluster.connection(deadline - here().monotonic())
            except Dropped as error:  # it was closed
                raise ConnectionLost(str(error)) from None
            try:
                await self._refresh(connection)
                return
            except TROUBLE as error:
                self.close()
                late = here().now() - self._asked > self._answer_s + LATE_S  # this process was busy, not the member
                if not (isinstance(error, TimeoutError) and late):
                    await self._after(error, connection)
                if here().monotonic() >= deadline:
                    raise TimeoutError from None

    def close(self) -> None:
        """End the stream."""
        if self._stream is not None:
            self._stream[1].close()
        self._stream = None

    async def _refresh(self, connection: Connection) -> None:
        if self._stream is None or self._stream[0] is not connection:
            self.close()
            self._stream = connection, connection.stream("Lease/LeaseKeepAlive")
        await self._ask(self._stream[1], self._lease)
        if here().now() - self._run_asked >= RUN_LEASE_S / PER_TTL:
            await self._ask(self._stream[1], self._run_lease)
            self._run_asked = self._asked

    async def _ask(self, stream: Stream, lease: int) -> None:
        self._asked = here().now()
        await stream.write(rpc.LeaseKeepAliveRequest(ID=lease), self._answer_s)
        if (await stream.read(self._answer_s)).TTL <= 0:
            raise self._over()

    async def _after(self, error: Exception, connection: Connection) -> None:
        """Leave the member, unless it only wants to know who is asking."""
        if (
            isinstance(error, grpc.aio.AioRpcError)
            and verdict(error, has_user=self._cluster.has_user) is Verdict.LOG_IN
        ):
            await asyncio.sleep(_LOGIN_PAUSE_S)
            connection.forget_login(connection.token)
            try:
                await connection.logged_in(self._ttl)
                return
            except TROUBLE as again:
                error = again
        await self._cluster.leave(connection, trouble(error))
