"""``EtcdCoordination``: the ``CoordinationBackend`` of backend ``etcd``."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence

from rdzv_plugins.backends.etcd.cluster import Cluster
from rdzv_plugins.backends.etcd.loop import LoopThread, loop_thread
from rdzv_plugins.backends.etcd.refusals import LeaseGone
from rdzv_plugins.backends.etcd.security import Security
from rdzv_plugins.backends.etcd.session import EtcdSession
from rdzv_plugins.backends.etcd.space import Space
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import ConnectionLost

logger = logging.getLogger(__name__)

_REPORT_EVERY_S = 10.0
_MORE_S = 2.0
"""For what a session needs once a member answers, however late that is."""


class _Opening:
    """What whoever opens a session and who opens it for them tell each other: either sees what the other wrote."""

    wanted = True
    session: EtcdSession | None = None


class EtcdCoordination:
    """Coordination of run ``run_id`` by the etcd cluster whose members are ``endpoints``. Thread-safe.

    ``prefix``: all its keys begin with it. ``outage_timeout``: seconds for which a session goes on while no
    member answers; then it is lost.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        run_id: str,
        *,
        security: Security | None = None,
        prefix: str = "/rdzv-plugins",
        outage_timeout: float = 60.0,
    ) -> None:
        self._endpoints, self._security = tuple(endpoints), security or Security()
        self._space, self._outage = Space(prefix, run_id), outage_timeout
        self._sessions: set[EtcdSession] = set()
        self._closed = False

    @property
    def name(self) -> str:
        return "etcd"

    @property
    def hosts_service(self) -> bool:
        return False

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> EtcdSession:
        """As ``CoordinationBackend.open_session``; etcd counts ``ttl`` in whole seconds, and may grant more.

        Raises ``AccessRefused`` too, and ``EndpointUnreachable`` with one reason for each member, before the time-out
        if waiting cannot help.
        """
        loop = loop_thread()
        opening = _Opening()
        try:
            return loop.run(self._open(loop, math.ceil(ttl), on_lost, timeout, opening), timeout + _MORE_S)
        except BaseException:  # a signal, for example, just when it had been opened
            opening.wanted = False
            if opening.session is not None:
                opening.session.close()
            raise

    async def _open(
        self,
        loop: LoopThread,
        ttl: int,
        on_lost: Callable[[ConnectionLost], None],
        timeout: float,
        opening: _Opening,
    ) -> EtcdSession:
        cluster = Cluster(self._endpoints, self._security, self._space.path)
        try:
            deadline = time.monotonic() + timeout + _MORE_S
            await _reach(cluster, timeout)
            while True:
                session = EtcdSession(loop, cluster, self._space, on_lost, self._sessions.discard)
                try:
                    await session.open(ttl, self._outage, deadline)
                    break
                except LeaseGone:  # before it was of use: this process, or etcd, has stood still
                    if time.monotonic() >= deadline:
                        raise
        except (TimeoutError, asyncio.TimeoutError):
            await cluster.close()
            raise cluster.problem(f"etcd could not be reached within {timeout:g} s") from None
        except BaseException:
            await cluster.close()
            raise
        self._sessions.add(session)
        opening.session = session
        if self._closed or not opening.wanted:  # by now
            loop.start(session.end(revoke=True))
            raise ConnectionLost("the backend was closed while a session was being opened")
        return session

    def close(self) -> None:
        """End the sessions that are still open. May be repeated."""
        self._closed = True
        for session in list(self._sessions):
            session.close()


async def _reach(cluster: Cluster, timeout: float) -> None:
    """Wait for a member that answers, saying every ten seconds what is waited for."""
    start = time.monotonic()
    while True:
        waited = time.monotonic() - start
        try:
            await cluster.connection(min(_REPORT_EVERY_S, timeout - waited))
            return
        except TimeoutError:
            waited = time.monotonic() - start
            if waited >= timeout:
                raise
            logger.info("waiting for etcd: %s (%.0f s of %g s)", cluster.why(), waited, timeout)
