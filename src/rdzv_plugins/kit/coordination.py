"""``Coordination``: a ``CoordinationBackend`` whose sessions are ``AsyncSession``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rdzv_plugins.errors import BrokenPlugin, ConnectionLost
from rdzv_plugins.kit.loop import Blocked, here, hold, let_go
from rdzv_plugins.kit.session import AsyncSession, KitSession
from rdzv_plugins.timing import EVERY_S

logger = logging.getLogger(__name__)

_MORE_S = 2.0
"""For what a session needs once the service answers, however late that is."""


class _Opening:
    """What whoever opens a session and who opens it for them tell each other: either sees what the other wrote."""

    name = "the service"
    wanted = True
    session: KitSession | None = None


class Coordination:
    """A ``CoordinationBackend`` called ``name``. ``new_session`` makes a session that is not yet open. Thread-safe."""

    hosts_service = False

    def __init__(self, name: str, new_session: Callable[[], AsyncSession]) -> None:
        self._name, self._new_session = name, new_session
        self._sessions: dict[KitSession, None] = {}  # in the order in which they were opened
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> KitSession:
        """Open a session, as ``CoordinationBackend.open_session`` does.

        Raises ``EndpointUnreachable`` or its subclass ``AccessRefused``, before the time-out if waiting cannot help;
        ``BrokenPlugin`` if the author's client is at fault.
        """
        loop, opening = hold(), _Opening()
        try:
            return loop.run(self._open(ttl, on_lost, timeout, opening), timeout + 2 * _MORE_S)
        except Blocked as error:
            raise BrokenPlugin(
                f"no session with {opening.name} within {timeout:g} s: {error}",
                remedy="Whatever blocks belongs into rdzv_plugins.kit.in_thread, or needs a library for asyncio.",
            ) from error
        except BaseException:  # a signal, for example, just when it had been opened
            opening.wanted = False
            if opening.session is not None:
                opening.session.close()
            raise
        finally:
            let_go(loop)

    async def _open(
        self, ttl: float, on_lost: Callable[[ConnectionLost], None], timeout: float, opening: _Opening
    ) -> KitSession:
        work, start = self._new_session(), here().monotonic()
        opening.name = work.name
        session = KitSession(work, on_lost, lambda over: self._sessions.pop(over, None))
        work.lose = session._lose
        telling = asyncio.get_running_loop().create_task(_tell_waiting(work, timeout))
        try:
            await work.reach(start + timeout)
            await work.open(ttl, start + timeout + _MORE_S)
        except BaseException as error:
            session.abandon()
            if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
                raise work.problem(f"{work.name} could not be reached within {timeout:g} s") from None
            raise
        finally:
            telling.cancel()
        self._sessions[session] = None
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


async def _tell_waiting(work: AsyncSession, timeout: float) -> None:
    """Say every ten seconds what is waited for."""
    start = here().monotonic()
    while True:
        await asyncio.sleep(EVERY_S)
        waited = here().monotonic() - start
        logger.info("waiting for %s: %s (%.0f s of %g s)", work.name, work.why(), waited, timeout)
