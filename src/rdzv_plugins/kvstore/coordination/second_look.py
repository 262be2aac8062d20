"""A server that has fallen silent is asked on a second connection: is it the server that is silent, or the connection?

A server that stands still answers nobody, and goes on with all sessions when it continues. But one that answers here,
and still not on the session's own connection, has most likely ended that session, or the path of its packets was cut:
TCP would find out only when it sends again, and it doubles its pauses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AccessRefused, RunIdMismatch
from rdzv_plugins.kvstore.coordination.framed_connection import FramedConnection
from rdzv_plugins.kvstore.native.framing import NotNative, OtherVersion
from rdzv_plugins.runtime import Runtime

if TYPE_CHECKING:
    import socket

logger = logging.getLogger(__name__)

_ATTEMPT_S = 5.0
_PAUSE_S = 0.5
_SECOND_WORD_S = 2.0
"""A server that continues reads all connections in one turn, but may have much to read."""


Look = Callable[[float], tuple["socket.socket | None", str]]
"""Connects within a time-out, as ``try_connect`` does, and greets."""


class SecondLook:
    """A thread that keeps asking until ``first`` is heard from again or has ended.

    Calls ``on_answer`` if the server answers on another connection, and still not on the first.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        first: FramedConnection,
        silent_for: float,
        on_answer: Callable[[], None],
        look: Look,
        runtime: Runtime,
    ) -> None:
        self._look, self._monotonic = look, runtime.monotonic
        self._endpoint, self._first, self._on_answer = endpoint, first, on_answer
        self._since = self._monotonic() - silent_for
        self._pause = runtime.Event()  # never set: used for waiting
        runtime.Thread(target=self._run, name="rdzv-second-look").start()

    def _run(self) -> None:
        logger.warning("%s does not answer; nodes that are working go on", self._endpoint)
        while self._first.is_silent:
            if self._answers():
                self._pause.wait(_SECOND_WORD_S)
                if self._first.is_silent:
                    self._on_answer()
                break
            self._pause.wait(_PAUSE_S)
        if self._first.is_open:
            logger.warning("%s answers again, after %.0f s", self._endpoint, self._monotonic() - self._since)

    def _answers(self) -> bool:
        try:
            connection, reason = self._look(_ATTEMPT_S)
        # another program or job has its port now
        except (NotNative, OtherVersion, AccessRefused, RunIdMismatch) as error:
            logger.debug("at %s: %r", self._endpoint, error)
            return False
        if connection is None:
            logger.debug("%s: %s", self._endpoint, reason)
            return False
        connection.close()
        return True
