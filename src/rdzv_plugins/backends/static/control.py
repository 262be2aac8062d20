"""The agents' control store of a static job, and the other nodes, as they are seen there. Works without torch.

Node rank 0 serves the store, every node is a client. Which nodes still work, and which are gone, is asked only at the
end and after a failure; of all nodes that ask at the same time, one looks, and the others read what it has found.

An agent that lives answers when asked, on its own connection and thread, whatever its main thread does. In the store,
``asked`` counts the questions, ``ask/<agent>`` is a question to that agent, which deletes it, and ``alive/<agent>`` the
number of the newest question that it has heard of. Nothing is sent while nobody asks. Silence proves nothing, but an
agent that is silent for long is not waited for.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from rdzv_plugins.backends.static.rounds import Arrival, StaticRounds
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointLost, StoreError, StoreLost, StoreTimeout
from rdzv_plugins.kvstore.sockets.reach import REFUSED, CancelToken, try_connect
from rdzv_plugins.kvstore.tcpstore.listener import greet_store, greeted
from rdzv_plugins.kvstore.tcpstore.plain_client import PlainClient
from rdzv_plugins.kvstore.tcpstore.wire import keep_alive
from rdzv_plugins.rounds.ends import JobRecord, absent, looked_once, missing
from rdzv_plugins.rounds.worker_stores import Serve
from rdzv_plugins.runtime import SYSTEM, Runtime
from rdzv_plugins.store import Prefixed, Store
from rdzv_plugins.timing import growing

if TYPE_CHECKING:
    import socket

logger = logging.getLogger(__name__)

_CONNECT_S = 30.0


class ControlStore:
    """A client, and on node rank 0 the server, too. Thread-safe.

    A signal leaves the client usable, as an agent that is stopped uses it to say so. Answers have no time limit: a
    server that stands still goes on later; that one is gone is noticed by TCP, or reported by ``interrupt``.
    """

    def __init__(
        self, connection: socket.socket, prefix: str, read_timeout: float, runtime: Runtime, server: Any = None
    ) -> None:
        """Takes over ``connection``, which was greeted, and ``server``. ``read_timeout`` (seconds) applies to waits.

        All keys of the run have the ``prefix``.
        """
        self._server = server
        self._waits = CancelToken(runtime)
        self.host, self.port = connection.getpeername()[:2]
        keep_alive(connection)
        self.client = PlainClient(
            connection,
            prefix="",
            timeout=read_timeout,
            interruption=self._waits,
            answer=None,
            again=functools.partial(_greeted, self.host, self.port, runtime),
            runtime=runtime,
        )
        run = Prefixed(prefix, self.client)
        self.record, self.rounds = JobRecord(run), StaticRounds(run, runtime)

    def interrupt(self, reason: str) -> None:
        """End all requests, now and later, with ``StoreLost`` and ``reason``. Never blocks."""
        self._waits.interrupt(reason)

    def close(self) -> None:
        """Make no more requests, and stop serving. May be called more than once."""
        self.interrupt("this agent ends")
        self.client.close()
        server, self._server = self._server, None
        if hasattr(server, "close"):  # torch's ends when nothing refers to it any more
            server.close()


def serve(
    listener: socket.socket, prefix: str, read_timeout: float, runtime: Runtime, *, native: Serve | None
) -> ControlStore:
    """Serve it, with the native store or, if that is None, torch's, on a listening socket, which is taken over."""
    address, port = listener.getsockname()[:2]
    own = {"::": "127.0.0.1", "0.0.0.0": "127.0.0.1"}.get(address, address)
    server: Any
    if native is not None:
        from rdzv_plugins.kvstore.native.framing import CONTROL, NO_RUN

        server = native(threads=1, listen_fd=listener.detach(), name=CONTROL, run=NO_RUN, runtime=runtime)
    else:
        from rdzv_plugins.kvstore.tcpstore.torch_store import serve_at

        server = serve_at(listener, timeout=read_timeout)
    return ControlStore(_greeted(own, port, runtime), prefix, read_timeout, runtime, server)


def _greeted(host: str, port: int, runtime: Runtime) -> socket.socket:
    """Make another greeted connection. Raises ``OSError``."""
    connection = greeted(host, port, _CONNECT_S, runtime)
    keep_alive(connection)
    return connection


_WAIT_S = 86400.0
"""How long one wait for a question takes at most; then the next begins."""
_AGAIN_S = 1.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
_LEFT = "left"


class PingResponder:
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
    ) -> None:
        """``store`` is this agent's client of the store at ``endpoint``; it has the ``prefix``.

        ``on_lost`` gets the error, on the thread, if it has to stop answering: nobody serves the store any more.
        """
        self._endpoint, self._prefix, self._me = endpoint, prefix, me
        self._store, self._on_lost, self._runtime = store, on_lost, runtime
        self._waits = CancelToken(runtime)
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
            timeout=_WAIT_S,
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

    ``store`` has the prefix that ``PingResponder`` was given. The number of requests does not grow with that of the
    agents. A signal interrupts the wait.
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


_ANSWER_S = 10.0
"""Seconds to wait: a living agent answers at once, or somewhat later if its machine is very busy."""
_LOOK_S = _ANSWER_S + 5
"""Seconds that the node that looks for all may take."""
_NAMED = 16
"""The most nodes that are named with host and pid."""


class Peers:
    """The other nodes of a static job. Use from one thread at a time.

    Every method asks the control store, and raises ``StoreLost`` once that is lost.
    """

    def __init__(
        self,
        control: ControlStore,
        prefix: str,
        me: str,
        rank: int,
        on_lost: Callable[[Exception], None],
        runtime: Runtime,
    ) -> None:
        """``me`` is this agent, of node ``rank``; ``prefix`` that of the run.

        ``on_lost`` is that of ``PingResponder``.
        """
        prefix = f"{prefix}/presence"
        self._store = Prefixed(prefix, control.client)
        self._record, self._rounds, self._rank, self._runtime = control.record, control.rounds, rank, runtime
        self._seen: tuple[int, int] | None = None
        """A round, and the number of the newest look at who works in it that this node knows."""
        self._presence = PingResponder(self._store, Endpoint(control.host, control.port), prefix, me, on_lost, runtime)

    def close(self) -> None:
        self._presence.stop()

    def lives(self, agent: Arrival) -> bool:
        """Whether an agent answers, which may take some seconds."""
        return not self._record.has_left(agent.incarnation) and bool(self._alive({0: agent}))

    def working(self, round_: int, nodes: int) -> list[str]:
        """The names of the nodes of a complete round that live and are not done."""
        busy = missing(self._rounds.agents(round_), nodes)
        if not any(rank != self._rank for rank in busy):
            return []
        counter = f"working/{round_}"
        if self._seen is None or self._seen[0] != round_:
            self._seen = round_, self._store.add(counter, 0)
        before = self._seen[1]  # whoever is first to look again writes the next number
        number = int(self._store.compare_set(counter, str(before), str(before + 1)))
        self._seen = round_, number

        def look() -> list[int]:
            for key in (f"{counter}/{number - 2}", f"{counter}/{number - 2}/looks"):  # older than anybody waits
                self._store.delete_key(key)
            return self._alive(self._rounds.arrived(round_, busy))

        alive = looked_once(self._store, f"{counter}/{number}", look, _LOOK_S)
        ranks = [rank for rank in alive if rank in busy and rank != self._rank]
        names = self._rounds.arrived(round_, ranks[:_NAMED])
        return [_name(rank, names.get(rank)) for rank in ranks]

    def lost(self, round_: int, nodes: int) -> list[str]:
        """The nodes of a complete round that have gone without a word, each with what is known about it.

        Whoever asks first in a round looks for all: what goes later is not why its workers failed.
        """

        def silent() -> list[int]:
            agents = self._rounds.arrived(round_, range(nodes))
            gone = agents.keys() - self._alive(agents)
            return [rank for rank in sorted(gone) if not self._record.has_left(agents[rank].incarnation)]

        ranks = [rank for rank in looked_once(self._store, f"lost/{round_}", silent, _LOOK_S) if rank != self._rank]
        names = self._rounds.arrived(round_, ranks)
        return [f"{_name(rank, names.get(rank))} was lost: its agent does not answer" for rank in ranks]

    def _alive(self, nodes: Mapping[int, Arrival]) -> list[int]:
        alive = ask(self._store, [who.incarnation for who in nodes.values()], _ANSWER_S, self._runtime)
        return [rank for rank, who in nodes.items() if who.incarnation in alive]


def _name(rank: int, who: Arrival | None) -> str:
    return f"node rank {rank} on {who}" if who is not None else f"node rank {rank}"
