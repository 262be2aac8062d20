"""``coordination_backend``: a ``CoordinationBackend`` of an author's ``ServiceClient``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rdzv_plugins.errors import BrokenPlugin, ConnectionLost
from rdzv_plugins.kit.client import ServiceClient
from rdzv_plugins.kit.loop import Blocked, acquire_loop, here, release_loop
from rdzv_plugins.kit.session import ClientSession
from rdzv_plugins.timing import EVERY_S

logger = logging.getLogger(__name__)

_SLACK_S = 4.0
"""Its session ends the attempt by itself; this is for a loop that stands still."""


def coordination_backend(name: str, new_client: Callable[[], ServiceClient], *, outage_timeout: float) -> Coordination:
    """Make a ``CoordinationBackend`` called ``name``; each of its sessions has its own client, made by ``new_client``.

    A session goes on for ``outage_timeout`` seconds while the service does not answer (``ttl``, if that is more).
    """
    return Coordination(name, new_client, outage_timeout)


class _Opening:
    """What whoever opens a session and who opens it for them tell each other: either sees what the other wrote."""

    name = "the service"
    wanted = True
    session: ClientSession | None = None


class Coordination:
    """What ``coordination_backend`` makes. Thread-safe."""

    hosts_service = False

    def __init__(self, name: str, new_client: Callable[[], ServiceClient], outage_timeout: float) -> None:
        self.name, self._new_client, self._outage = name, new_client, outage_timeout
        self._sessions: dict[ClientSession, None] = {}  # in the order in which they were opened
        self._closed = False

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> ClientSession:
        """Open a session, as ``CoordinationBackend.open_session`` does.

        Raises ``EndpointUnreachable`` or its subclass ``AccessRefused``, before the time-out if waiting cannot help;
        ``BrokenPlugin`` if the author's client is at fault.
        """
        loop, opening = acquire_loop(), _Opening()
        try:
            return loop.run(self._open(ttl, on_lost, timeout, opening), timeout + _SLACK_S)
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
            release_loop(loop)

    async def _open(
        self, ttl: float, on_lost: Callable[[ConnectionLost], None], timeout: float, opening: _Opening
    ) -> ClientSession:
        session = ClientSession(self._new_client(), self._outage)
        opening.name = session.name
        telling = asyncio.get_running_loop().create_task(_tell_waiting(session, timeout))
        try:
            await session.open(ttl, on_lost, lambda over: self._sessions.pop(over, None), timeout)
        except BaseException as error:
            session.abandon()
            if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
                raise session.problem(f"{session.name} could not be reached within {timeout:g} s") from None
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


async def _tell_waiting(session: ClientSession, timeout: float) -> None:
    """Say every ten seconds what is waited for."""
    start = here().monotonic()
    while True:
        await asyncio.sleep(EVERY_S)
        waited = here().monotonic() - start
        logger.info("waiting for %s: %s (%.0f s of %g s)", session.name, session.reason.text, waited, timeout)
