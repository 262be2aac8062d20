"""``EtcdCoordination``, and its sessions on the kit's thread: a lease that is kept alive, requests, and watches.

etcd ends a lease that was not refreshed within its time to live, by the clock of its leader alone; after an election
every lease has its full time again. So only etcd knows whether a lease lives: while no member answers, this node does
not know, and goes on for as long as the user allows (``kit.keeping``).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence

from rdzv_plugins.backends.etcd.api import grpc, rpc
from rdzv_plugins.backends.etcd.cluster import Cluster
from rdzv_plugins.backends.etcd.connection import (
    LATE_S,
    TROUBLE,
    Connection,
    Dropped,
    Stream,
    Whose,
    nobody_knows,
    trouble,
)
from rdzv_plugins.backends.etcd.refusals import LeaseGone, Verdict, verdict
from rdzv_plugins.backends.etcd.requests import Requests
from rdzv_plugins.backends.etcd.security import EtcdSecurity
from rdzv_plugins.backends.etcd.space import RUN_LEASE_S, Space
from rdzv_plugins.backends.etcd.watches import Watched, Watches
from rdzv_plugins.coordination import KeyValue
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import ConnectionLost, EndpointUnreachable, RdzvError, RendezvousFailed
from rdzv_plugins.kit.coordination import Coordination
from rdzv_plugins.kit.keeping import PER_TTL, Keeper
from rdzv_plugins.kit.loop import here, hold_for_good
from rdzv_plugins.kit.session import AsyncSession, Closed, KitSession
from rdzv_plugins.kvstore.coordination.reactor import StoppableCall

_ANSWER_S = 5.0
"""Only refreshing reveals that the way to a member is dead; the watches are deaf meanwhile."""
_LOGIN_PAUSE_S = 0.2
_MORE_S = 2.0
"""Seconds for what is asked once a member answers, however late that is."""
_GOOD_BYE_S = 1.0
"""Seconds to revoke a lease that was granted to a session that could not be opened."""


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


class EtcdSession(AsyncSession):
    """A session that lives as long as its lease, at whichever member answers.

    ``outage``: seconds for which no member may answer.
    """

    def __init__(self, cluster: Cluster, space: Space, outage: float) -> None:
        self.name = f"etcd at {cluster.name}"
        self._cluster, self._space, self._outage = cluster, space, outage
        self._watches = Watches(cluster, space, self._watching_failed)
        self._new_lease()
        self._keeping: Keeper | None = None
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
        leases = Leases(self._cluster, self._lease, self.ttl, self._space.run_lease, lambda: keeper.over())
        self._keeping = keeper = Keeper(
            self.name, "etcd", leases.renew, self._cluster.reason, self.ttl, self._outage, opened=asked
        )
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep(keeper, leases)), loop.create_task(self._watches.run())]

    async def _keep(self, keeper: Keeper, leases: Leases) -> None:
        try:
            self.lose(await keeper.run())
        finally:
            leases.close()

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
            raise (self._keeping.over() if self._keeping is not None else error) from None

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


class EtcdCoordination(Coordination):
    """Coordination of run ``run_id`` by the etcd cluster whose members are ``endpoints``. Thread-safe.

    All its keys begin with ``prefix``. ``outage_timeout``: seconds for which a session goes on while no member answers;
    after that it is lost. ``whose``: see ``Request.whose``.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        run_id: str,
        *,
        security: EtcdSecurity | None = None,
        prefix: str = "/rdzv-plugins",
        outage_timeout: float = 60.0,
        whose: Whose = nobody_knows,
    ) -> None:
        self._endpoints, self._security = tuple(endpoints), security or EtcdSecurity()
        self._space, self._whose = Space(prefix, run_id), whose
        super().__init__("etcd", lambda: EtcdSession(self._cluster(), self._space, outage_timeout))

    def _cluster(self) -> Cluster:
        return Cluster(self._endpoints, self._security, self._space.path, whose=self._whose)

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> KitSession:
        """See ``Coordination.open_session``; etcd counts ``ttl`` in whole seconds, and may grant more.

        ``EndpointUnreachable`` has one reason for each member.
        """
        hold_for_good()  # gRPC cannot move from one loop to another
        return super().open_session(ttl, on_lost=on_lost, timeout=timeout)

    def peek(self, key: str, *, timeout: float) -> bytes | None:
        """The current value of the run's ``key`` if a session of the run lives.

        If none does, a dead run has left the key behind. Needs no session itself: nothing is written. Raises as
        ``open_session``.
        """
        return hold_for_good().run(self._peek(key, timeout), timeout + _MORE_S)

    async def _peek(self, key: str, timeout: float) -> bytes | None:
        cluster = self._cluster()
        deadline = here().monotonic() + timeout
        try:
            await cluster.connection(timeout)
            what = f"reading {key!r}"
            alive, _ = await cluster.call(what, "KV/Range", self._space.anybody(), deadline)
            answer, _ = await cluster.call(what, "KV/Range", rpc.RangeRequest(key=self._space.full(key)), deadline)
            return answer.kvs[0].value if alive.count and answer.kvs else None
        except (TimeoutError, asyncio.TimeoutError):
            raise cluster.problem(f"etcd could not be reached within {timeout:g} s") from None
        finally:
            await cluster.close()
