"""Grants leases, keeps them alive, and tells how one has ended. On the loop's thread only.

etcd ends a lease that was not refreshed within its time to live, by the clock of its leader alone; after an election
every lease has its full time again. So only etcd knows whether a lease lives: while no member answers, this node does
not know, and goes on for as long as the user allows.
"""

from __future__ import annotations

import asyncio
import logging
import math

from rdzv_plugins.backends.etcd.api import grpc, rpc
from rdzv_plugins.backends.etcd.cluster import Cluster
from rdzv_plugins.backends.etcd.connection import LATE_S, TROUBLE, Connection, Dropped, Stream
from rdzv_plugins.backends.etcd.refusals import Verdict, reason_of, verdict
from rdzv_plugins.backends.etcd.space import RUN_LEASE_S
from rdzv_plugins.errors import ConnectionLost, RendezvousFailed
from rdzv_plugins.kit.loop import here
from rdzv_plugins.timing import EVERY_S

logger = logging.getLogger(__name__)

_REFRESHES_PER_TTL = 3
_QUIET_S = 1.0
"""Moving to another member takes fewer seconds than this, and is not worth a line."""
_LONGEST_PERIOD_S = 10.0
"""Only refreshing reveals that the way to etcd is dead; the watches are deaf meanwhile."""
_ANSWER_S = 5.0
_LOGIN_PAUSE_S = 0.2
_CLOCK_S = 5.0
"""A wall clock that moves by more seconds than this against the machine's own has been set."""


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


async def _refreshed(stream: Stream, lease: int, timeout: float) -> int:
    """Refresh ``lease``; returns the seconds that it has now, 0 if it is gone. Raises ``TROUBLE``."""
    await stream.write(rpc.LeaseKeepAliveRequest(ID=lease), timeout)
    return int((await stream.read(timeout)).TTL)


class KeepAlive:
    """Refreshes a session's lease, and now and then its run's, at whichever member answers."""

    def __init__(
        self, cluster: Cluster, lease: int, ttl: float, run_lease: int, outage: float, *, granted: float
    ) -> None:
        """``granted`` is when the lease was requested (``now``)."""
        self._cluster, self._lease, self._ttl, self._run_lease = cluster, lease, ttl, run_lease
        self._patience = max(outage, ttl)
        self._period = min(ttl / _REFRESHES_PER_TTL, _LONGEST_PERIOD_S)
        self._last = granted
        self._run_last = -math.inf  # it may be about to end
        self._stepped = here().now()
        self._stood = 0.0  # for how long this process has stood still since the last refresh
        self._late = False
        self._troubled = False  # since the last refresh
        self._clock = here().wall() - here().now()

    @property
    def known_until(self) -> float:
        """The lease lives at least until then (``now``). Any thread may ask."""
        return self._last + self._ttl

    async def run(self) -> ConnectionLost:
        """Run until the lease is gone, or nobody has answered for too long; returns why the session has ended."""
        while True:
            try:
                connection = await self._reach()
                if connection is None:
                    return self._unanswered()
                try:
                    return self.gone(await self._refresh(connection))
                except TROUBLE as error:
                    self._troubled = True
                    await self._after(error, connection)
            except Dropped as error:
                return ConnectionLost(str(error))
            except Exception as error:  # it must not end in silence
                logger.exception("keeping the lease alive has failed")
                return ConnectionLost(f"keeping the lease alive has failed: {error!r}")

    async def _after(self, error: Exception, connection: Connection) -> None:
        """Leave the member, unless this process was late, or the member only wants to know who is asking."""
        if isinstance(error, TimeoutError) and self._late:
            return
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

    async def _reach(self) -> Connection | None:
        """A connection; None if it has taken too long."""
        wait, told = _QUIET_S, False
        while (left := self._last + self._patience - here().now()) > 0:
            try:
                connection = await self._cluster.connection(min(wait, left))
            except TimeoutError:
                self._troubled = True
                if wait >= left:
                    return None
                told = True
                logger.warning(
                    "etcd has not answered for %.0f s (%s); this node goes on without it for another %.0f s at most",
                    here().now() - self._last,
                    self._cluster.why(),
                    left - wait,
                )
                wait = EVERY_S
                continue
            if told:
                logger.warning(
                    "etcd answers again, at %s, after %.0f s", connection.endpoint, here().now() - self._last
                )
            return connection
        return None

    async def _refresh(self, connection: Connection) -> str:
        """Refresh the leases; returns which one is gone."""
        period, timeout = self._period, min(self._period, _ANSWER_S)
        self._stepped = here().now()
        stream = connection.stream("Lease/LeaseKeepAlive")
        try:
            while True:
                self._step()
                sent = here().now()
                if await _refreshed(stream, self._lease, timeout) <= 0:
                    return "its lease"
                self._last, self._troubled, self._stood = sent, False, 0.0
                if sent - self._run_last >= RUN_LEASE_S / _REFRESHES_PER_TTL:
                    if await _refreshed(stream, self._run_lease, timeout) <= 0:
                        return "the lease of the run"
                    self._run_last = sent
                await asyncio.sleep(max(0.0, sent + period - here().now()))
        finally:
            self._step()
            stream.close()

    def _step(self) -> None:
        """Note a step: between two of them nothing here takes longer than the time between two refreshes."""
        stood, self._stepped = here().now() - self._stepped, here().now()
        self._late = stood > min(self._period, _ANSWER_S) + LATE_S
        if stood > self._period + self._ttl / 2:
            self._stood = max(self._stood, stood)

    def _unanswered(self) -> ConnectionLost:
        text = f"etcd has not answered for {here().now() - self._last:.0f} s: {self._cluster.why()}"
        error = ConnectionLost(text, remedy=self._cluster.remedy)
        error.silent, error.silent_since = True, None if self._stood else self._last
        return error

    def gone(self, which: str = "its lease") -> ConnectionLost:
        """The reason for the end, as far as this node can tell."""
        silence = here().now() - self._last
        if silence < self._ttl:
            text = (
                f"{which} is gone, though it was refreshed {silence:.1f} s ago: it was revoked by hand, etcd has lost "
                "data, a leader of etcd that stood still has come back (its issue 15247), its clock has jumped, or the "
                "node that leads took this process for gone"
            )
        elif self._troubled and not self._stood:
            text = (
                f"{which} has ended, for no member of etcd has answered in time: the last one did {silence:.1f} s ago"
            )
        else:
            text = (
                f"{which} has ended, for this process stood still for {self._stood or silence:.1f} s (it was stopped, "
                f"or the machine slept or was overloaded); after {self._ttl:g} s it counts as lost"
            )
        jump = here().wall() - here().now() - self._clock
        if abs(jump) > _CLOCK_S:
            text += f"; the clock of this machine has been set by {jump:+.0f} s meanwhile, which is not the cause"
        return ConnectionLost(f"the session with etcd at {self._cluster.name} is over: {text}")
