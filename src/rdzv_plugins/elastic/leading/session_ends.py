"""Ends the sessions of nodes whose processes are gone, apart from the leader's own work: nobody waits for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rdzv_plugins.coordination import EndsSessions, Session
from rdzv_plugins.elastic.insisting import patience
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.runtime import Runtime

if TYPE_CHECKING:
    from queue import SimpleQueue

logger = logging.getLogger(__name__)


class SessionEnds:
    """Ends the sessions of nodes that are gone. Use from one thread at a time.

    If the service cannot end a session, or does not, its time to live ends it.
    """

    def __init__(self, session: Session, runtime: Runtime) -> None:
        self._session, self._runtime = session, runtime
        self._keys: SimpleQueue[str | None] = self._runtime.SimpleQueue()
        self._started = False

    def end(self, key: str) -> None:
        """End the session that the ephemeral ``key`` belongs to, after those queued before it. Does not wait."""
        if not isinstance(self._session, EndsSessions):
            return
        self._keys.put(key)
        if not self._started:
            self._started = True
            self._runtime.Thread(target=self._run, args=(self._session,), name="rdzv-session-ends").start()

    def close(self) -> None:
        """End nothing beyond what has already been requested: that stays right, whoever leads."""
        self._keys.put(None)

    def _run(self, session: EndsSessions) -> None:
        try:
            while (key := self._keys.get()) is not None:
                self._end(session, key)
        except ConnectionLost as error:
            logger.debug("sessions of nodes whose agents have ended, end by themselves: %s", error)

    def _end(self, session: EndsSessions, key: str) -> None:
        try:
            session.end_session(key, timeout=patience(self._session))
        except ConnectionLost:
            raise
        except Exception as error:  # a plug-in's, or the service does not answer
            logger.warning(
                "the session of %s, whose agent has ended, ends by itself: the service has not ended it: %r", key, error
            )
