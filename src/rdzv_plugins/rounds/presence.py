"""Tells whether an agent lives: it answers when asked, on its own connection and thread, whatever its main thread does.

In the agents' control store, ``asked`` counts the questions, ``ask/<n>`` is the n-th, and ``alive/<n>/<agent>`` an
answer. Nothing is sent while nobody asks. Silence proves nothing, but an agent that is silent for long is not waited
for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from rdzv_plugins.errors import StoreError
from rdzv_plugins.kvstore.sockets.interruption import Interruption
from rdzv_plugins.kvstore.sockets.reach import dial
from rdzv_plugins.kvstore.tcpstore import wire
from rdzv_plugins.kvstore.tcpstore.plain_client import PlainClient
from rdzv_plugins.store import Store
from rdzv_plugins.threads import OwnThread

logger = logging.getLogger(__name__)

_CONNECT_S = 30.0
_WAIT_S = 86400.0
_PAUSE_S = 0.05


class Presence:
    """Answers for the agent known as ``me``, from construction until ``stop``. Raises ``OSError`` without a store."""

    def __init__(self, host: str, port: int, prefix: str, me: str) -> None:
        self._me = me
        self._connection = dial(host, port, _CONNECT_S)
        self._waits = Interruption()
        try:
            wire.greet(self._connection)
        except OSError:
            self._connection.close()
            raise
        self._client = PlainClient(self._connection, prefix=prefix, timeout=_WAIT_S, interruption=self._waits)
        self._stopped = False
        self._thread = OwnThread(target=self._run, name="rdzv-presence")
        self._thread.start()

    def stop(self) -> None:
        """Stop answering. May be called more than once."""
        self._stopped = True
        self._waits.interrupt("this agent ends")
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        try:
            number = self._client.add("asked", 0)  # the newest may be under way
            while not self._stopped:
                if number > 0:
                    self._client.wait([f"ask/{number}"])
                    self._client.set(f"alive/{number}/{self._me}", "")
                number += 1
        except StoreError as error:  # the store has gone, and whoever could ask with it
            logger.debug("this agent answers no longer: %s", error)


def ask(store: Store, agents: Iterable[str], timeout: float) -> set[str]:
    """Which of ``agents`` live. Returns at once when all have answered, and after ``timeout`` seconds at the latest.

    ``store`` has the prefix that ``Presence`` was given. A signal interrupts the wait.
    """
    silent = set(agents)
    if not silent:
        return set()
    asked, deadline = set(silent), time.monotonic() + timeout
    number = store.add("asked", 1)
    store.set(f"ask/{number}", "")
    if number > 1:
        store.set(f"ask/{number - 1}", "")  # the previous asker may have ended in between
    while silent and time.monotonic() < deadline:
        silent = {agent for agent in silent if not store.check([f"alive/{number}/{agent}"])}
        if silent:
            time.sleep(_PAUSE_S)
    return asked - silent
