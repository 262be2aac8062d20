"""Tells whether an agent lives: it answers when asked, on its own connection and thread, whatever its main thread does.

In the agents' control store, ``asked`` counts the questions, ``ask/<agent>`` is a question to that agent, which deletes
it, and ``alive/<agent>`` the number of the newest question that it has heard of. Nothing is sent while nobody asks.
Silence proves nothing, but an agent that is silent for long is not waited for.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointLost, StoreError, StoreLost, StoreTimeout
from rdzv_plugins.kvstore.sockets.reach import REFUSED, Interruption, try_connect
from rdzv_plugins.kvstore.tcpstore.listener import greet_store
from rdzv_plugins.kvstore.tcpstore.plain_client import PlainClient
from rdzv_plugins.kvstore.tcpstore.wire import keep_alive
from rdzv_plugins.rounds.exit_barrier import absent
from rdzv_plugins.runtime import SYSTEM, Runtime
from rdzv_plugins.store import Store
from rdzv_plugins.timing import growing

logger = logging.getLogger(__name__)

_CONNECT_S = 30.0
_WAIT_S = 86400.0
_AGAIN_S = 1.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
_LEFT = "left"


class Presence:
    """Answers for the agent known as ``me``, from construction until ``stop``.

    Construction raises ``StoreLost`` or ``EndpointLost`` if the store cannot be reached.
    """

    def __init__(
        self,
        store: Store,
        endpoint: Endpoint,
        prefix: str,
        me: str,
        on_lost: Callable[[Exception], None],
        runtime: Runtime,
        *,
        wait: float = _WAIT_S,
    ) -> None:
        """``store`` is this agent's client of the store at ``endpoint``; it has the ``prefix``.

        ``on_lost`` gets the error, on the thread, if it has to stop answering: nobody serves the store any more. One
        wait for a question takes ``wait`` seconds at most; then the next begins.
        """
        self._endpoint, self._prefix, self._me, self._wait = endpoint, prefix, me, wait
        self._store, self._on_lost, self._runtime = store, on_lost, runtime
        self._waits = Interruption(runtime)
        self._client: PlainClient | None = None
        store.set(f"alive/{me}", "0")
        self._connect()
        self._stopped = False
        self._thread = runtime.Thread(target=self._run, name="rdzv-presence")
        self._thread.start()

    def stop(self) -> None:
        """Stop answering; nobody waits for an answer. May be called more than once."""
        self._stopped = True
        self._waits.interrupt("this agent ends")
        self._thread.join()
        with contextlib.suppress(StoreError):
            self._store.set(f"alive/{self._me}", _LEFT)

    def _run(self) -> None:
        try:
            while not self._stopped:
                try:
                    if self._client is None:
                        self._connect()
                    else:
                        self._answer(self._client)
                except StoreTimeout:  # nobody has asked: that says nothing about the store
                    pass
                except StoreLost as error:
                    logger.debug("whether this agent lives cannot be asked now: %s", error)
                    self._hang_up()
                    self._waits.sleep(_AGAIN_S)
        except Exception as error:  # whatever it is, from now on this agent seems to be gone
            if not self._stopped:
                self._on_lost(error)
        finally:
            self._hang_up()

    def _answer(self, client: PlainClient) -> None:
        """Answer all that was asked so far, and wait for the next question.

        The question goes before the number is read: one that is asked meanwhile is counted, or is still there.
        """
        client.set(f"alive/{self._me}", str(client.add("asked", 0)))
        client.wait([f"ask/{self._me}"])
        client.delete_key(f"ask/{self._me}")

    def _connect(self) -> None:
        """Raises ``StoreLost`` if that is not possible now, and ``EndpointLost`` if nobody serves there."""
        connection, reason = try_connect(
            self._endpoint, _CONNECT_S, greet_store, interruption=self._waits, runtime=self._runtime
        )
        if connection is None:
            gone = EndpointLost if reason == REFUSED else StoreLost
            raise gone(f"the control store at {self._endpoint} cannot be reached: {reason}")
        keep_alive(connection)
        # a server that stands still goes on later; that one is gone is noticed by TCP
        self._client = PlainClient(
            connection,
            prefix=self._prefix,
            timeout=self._wait,
            interruption=self._waits,
            answer=None,
            runtime=self._runtime,
        )

    def _hang_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def ask(store: Store, agents: Collection[str], timeout: float, runtime: Runtime = SYSTEM) -> set[str]:
    """Which of ``agents`` live. Returns at once when all have answered, and after ``timeout`` seconds at the latest.

    ``store`` has the prefix that ``Presence`` was given. The number of requests does not grow with that of the agents.
    A signal interrupts the wait.
    """
    if not agents:
        return set()
    deadline, pauses = runtime.monotonic() + timeout, growing(_PAUSE_S, _LONGEST_PAUSE_S, factor=2)
    number = store.add("asked", 1)
    store.multi_set([f"ask/{agent}" for agent in agents], [""] * len(agents))
    unknown = {list(agents)[each] for each in absent(store, [f"alive/{agent}" for agent in agents])}
    known = [agent for agent in agents if agent not in unknown]
    while known:
        said = dict(zip(known, store.multi_get([f"alive/{agent}" for agent in known]), strict=True))
        alive = {agent for agent, text in said.items() if text.isdigit() and int(text) >= number}
        awaited = [agent for agent, text in said.items() if agent not in alive and text != _LEFT.encode()]
        if not awaited or runtime.monotonic() >= deadline:
            return alive
        runtime.sleep(min(next(pauses), max(0.0, deadline - runtime.monotonic())))
    return set()
