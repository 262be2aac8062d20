"""``RedisCoordination``: the ``CoordinationBackend`` of backend ``redis``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from rdzv_plugins.errors import ConnectionLost

from rdzv_redis.loop import hold, let_go
from rdzv_redis.security import Security
from rdzv_redis.server import Server
from rdzv_redis.session import RedisSession
from rdzv_redis.space import Space
from rdzv_redis.target import Target
from rdzv_redis.wire import Wire

logger = logging.getLogger(f"rdzv_plugins.{__name__}")  # the launcher prints what is logged below that name

_REPORT_EVERY_S = 10.0
_MORE_S = 2.0
"""For what a session needs once Redis answers, however late that is."""


class _Opening:
    """What whoever opens a session and who opens it for them tell each other: either sees what the other wrote."""

    wanted = True
    session: RedisSession | None = None


class RedisCoordination:
    """Coordination of run ``run_id`` by the Redis at ``target``. Thread-safe.

    ``prefix``: the names of all its keys begin with it. ``outage_timeout``: seconds for which a session goes on while
    Redis does not answer (its time to live, if that is more); then it is lost.
    """

    def __init__(
        self,
        target: Target,
        run_id: str,
        *,
        security: Security | None = None,
        prefix: str = "rdzv-plugins",
        outage_timeout: float = 60.0,
    ) -> None:
        self._target, self._security = target, security or Security()
        self._prefix, self._space, self._outage = prefix, Space(prefix, run_id), outage_timeout
        self._sessions: set[RedisSession] = set()
        self._closed = False

    @property
    def name(self) -> str:
        return "redis"

    @property
    def hosts_service(self) -> bool:
        return False

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> RedisSession:
        """As ``CoordinationBackend.open_session``.

        Raises ``EndpointUnreachable``, and ``AccessRefused`` which is one, before the time-out if waiting cannot help.
        """
        loop, opening = hold(), _Opening()
        try:
            return loop.run(self._open(ttl, on_lost, timeout, opening), timeout + 2 * _MORE_S)
        except BaseException:  # a signal, for example, just when it had been opened
            opening.wanted = False
            if opening.session is not None:
                opening.session.close()
            raise
        finally:
            let_go(loop)

    async def _open(
        self,
        ttl: float,
        on_lost: Callable[[ConnectionLost], None],
        timeout: float,
        opening: _Opening,
    ) -> RedisSession:
        server = Server(self._target, self._security, self._prefix)
        session = RedisSession(server, self._space, ttl, on_lost, self._sessions.discard)
        start = time.monotonic()
        try:
            wire = await _reach(server, start, timeout)
            await session.open(wire, self._outage, start + timeout + _MORE_S)
        except TimeoutError:
            raise server.problem(f"{server.name} could not be reached within {timeout:g} s") from None
        self._sessions.add(session)
        opening.session = session
        if self._closed or not opening.wanted:  # by now
            session.close()
            raise ConnectionLost("the backend was closed while a session was being opened")
        return session

    def close(self) -> None:
        """End the sessions that are still open. May be repeated."""
        self._closed = True
        for session in list(self._sessions):
            session.close()


async def _reach(server: Server, start: float, timeout: float) -> Wire:
    """A connection, saying every ten seconds what is waited for."""
    end = start + timeout
    while True:
        try:
            return await server.connect(min(end, time.monotonic() + _REPORT_EVERY_S))
        except TimeoutError:
            if time.monotonic() >= end:
                raise
            logger.info(
                "waiting for %s: %s (%.0f s of %g s)",
                server.name,
                server.reason.text,
                time.monotonic() - start,
                timeout,
            )
