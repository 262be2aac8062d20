"""The workers' store of a round, from both ends: rank 0 serves it, and every node dials it before it counts as reached.

With ``store=tiered``, workers and agents talk to this node's proxy after that.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rdzv_plugins.certificates import NodeCertificates
from rdzv_plugins.elastic.keys import Assignment
from rdzv_plugins.elastic.node_proxy import NodeProxy, OnLost
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.endpoints import Endpoint, is_loopback_address
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.job_token import JobToken
from rdzv_plugins.kvstore.native.framing import greet_guarded
from rdzv_plugins.kvstore.sockets.listening import PortTurns
from rdzv_plugins.kvstore.sockets.reach import Greeting, Interruption, try_connect
from rdzv_plugins.kvstore.tcpstore.listener import greet_store
from rdzv_plugins.kvstore.tcpstore.plain_client import PlainClient
from rdzv_plugins.rounds.worker_stores import WorkerStores
from rdzv_plugins.runtime import Runtime

if TYPE_CHECKING:
    import socket

_PREFIX = "agents"
"""The agents of a round share its workers' store, under this prefix."""
_ROUND = "round"
"""The agents' key for the round that a store was made for."""
_ATTEMPT_S = 1.0
_PAUSE_S = 0.2
_STILL = 1 / 3
"""A fraction of the time to live. Keep-alives are sent three times within it: a shorter standstill loses no session."""
_ANSWER_S = 10.0
"""Seconds to wait for an answer from this process: longer than it can be kept from running."""


class RoundStore:
    """The workers' store of a round, at most one at a time. Thread-safe."""

    def __init__(
        self,
        options: ElasticOptions,
        on_lost: OnLost,
        runtime: Runtime,
        *,
        token: JobToken | None = None,
        run_id: str = "",
        several: bool = False,
        tls: NodeCertificates | None = None,
    ) -> None:
        """``on_lost`` is called when this node's proxy has lost the store; ``token`` is that of the job ``run_id``.

        ``several``: the job has more nodes than this one. ``tls``: the certificates used between its nodes.
        """
        # otherwise there is one node: see ``options.validate``
        guarded, self._tls = (token, tls) if options.store == "tiered" else (None, None)
        self._greet: Greeting = functools.partial(greet_guarded, token=guarded, run_id=run_id)
        self._options, self._runtime = options, runtime
        ports = PortTurns(options.worker_ports)
        self._stores = WorkerStores(
            options,
            timeout=options.read_timeout,
            ports=ports,
            shared_by=run_id if several else "",
            tokens=guarded.accepted(run_id) if guarded is not None else (),
            admit="anyone" if token is None and tls is None else "user",
            tls=self._tls,
            runtime=runtime,
        )
        self._lock = self._runtime.Lock()
        self.patience = max(options.reach_timeout, options.ttl + 1)
        """Seconds for which a store that does not answer is dialled again: by then a lost node is known to be lost."""
        self._proxy = NodeProxy(
            options, ports, self.patience, on_lost, runtime, token=guarded, run_id=run_id, tls=self._tls
        )
        self._waits = (0, Interruption())  # of the round that was reached last
        self._reaching, self._give_up_at, self._retry_at = 0, 0.0, math.inf
        self._served = 0  # the round whose store is served here
        self._local_addr = ""  # on the way to the store
        self.session_lives: Callable[[], bool] = lambda: True
        """Waits until it is known whether the session lives; set before a store is served."""
        self.agents: PlainClient | None = None
        """The agents' client of the store of the round that was reached last."""

    def serve(self, place: Assignment, address: str) -> tuple[int, str, int]:
        """Serve it as rank 0, listening before anybody knows. Returns (round, address, port).

        Raises ``AddressInUse``.
        """
        with self._lock:
            store = self._stores.open(address, f"the workers' store of round {place.round}", first=place.round == 1)
            self._served = place.round
            if hasattr(store, "pause_after"):  # only the native one has it
                store.pause_after(self._options.ttl * _STILL, functools.partial(self._on_pause, store))
        near = Endpoint(address if is_loopback_address(address) else "127.0.0.1", store.port)
        mine = Interruption()  # never interrupted: it is a store of this process
        own = self._tls.within_one_process() if self._tls is not None else None
        connection, reason = try_connect(near, _ANSWER_S, self._greet, interruption=mine, tls=own)
        if connection is None:
            raise EndpointUnreachable(f"the workers' store that this node serves at {near} does not answer: {reason}")
        client = self._client(connection, mine)
        client.set(_ROUND, str(place.round))
        client.check([_ROUND])  # wait for an answer: the store is there before anybody is told of it
        client.close()
        return place.round, address, store.port

    def _on_pause(self, store: Any, pause: int) -> None:
        """This process has stood still, and the store has stopped serving: others may have a newer round.

        It goes on if this node's session lives. Otherwise it stays stopped until the node joins again, which closes it.
        """
        if self.session_lives():
            store.resume(pause)

    @property
    def retry_at(self) -> float:
        """When to call ``reach`` again, in the monotonic clock's seconds; infinite if there is no need."""
        return self._retry_at

    def reach(self, place: Assignment) -> str | None:
        """Dial the store. Returns "", or why it cannot be reached, or None if it is to be tried again.

        Blocks for about a second at most: the round may be given up in the meantime because rank 0 was lost.
        """
        now = self._runtime.monotonic()
        if place.round != self._reaching:
            # a node that is unreachable because it is lost should be known as lost first
            self._reaching, self._give_up_at = place.round, now + self.patience
            self._waits = (place.round, Interruption())
        self._retry_at = math.inf
        endpoint = Endpoint(place.master_addr, place.master_port)
        try:
            connection, reason = self.attempt(endpoint, _ATTEMPT_S, self._interruption)
        except EndpointUnreachable as error:  # something other than a store answers
            return str(error)
        if connection is None:
            if self._runtime.monotonic() >= self._give_up_at:
                return f"{reason}, for {self.patience:g} s"
            self._retry_at = self._runtime.monotonic() + _PAUSE_S
            return None
        self._local_addr = str(connection.getsockname()[0])
        self._use(connection)
        return ""

    def attempt(
        self, endpoint: Endpoint, timeout: float, interruption: Interruption | None = None
    ) -> tuple[socket.socket | None, str]:
        """Talk to the store of a round at ``endpoint``, as an agent does; returns what ``try_connect`` does."""
        return try_connect(endpoint, timeout, self._greet, interruption=interruption, tls=self._tls)

    def open(self, place: Assignment, address: str | None) -> Endpoint:
        """The round is complete: return where the workers of this node find its store.

        ``address`` is the one that was given for this node. See ``NodeProxy.open`` for the rest.
        """
        if self._options.store != "tiered":
            return Endpoint(place.master_addr, place.master_port)
        assert self.agents is not None
        where = self._proxy.open(place, self.agents, address or self._local_addr, self._interruption)
        if self._proxy.used:
            connection, reason = try_connect(where, _ANSWER_S, greet_store, interruption=self._interruption)
            if connection is None:
                raise EndpointUnreachable(f"this node's own proxy at {where} does not answer: {reason}")
            self._use(connection)
            self._check_round(place)
        return where

    def interrupt(self, round_: int, reason: str) -> None:
        """End all waits of this node's agent in the store of ``round_``, whoever serves it. Never blocks; any thread.

        From now on, requests to that store fail at once with ``StoreLost`` and ``reason``.
        """
        waited_for, interruption = self._waits
        if waited_for == round_:
            interruption.interrupt(reason)

    @property
    def _interruption(self) -> Interruption:
        return self._waits[1]

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the workers of the round."""
        return self._proxy.environment

    def is_cut_off(self) -> bool:
        """Whether this node's proxy has no connection to the store."""
        return self._proxy.is_cut_off()

    @property
    def is_parent(self) -> bool:
        """Whether other nodes' proxies depend on this one's."""
        return self._proxy.is_parent

    def close(self, round_: int) -> None:
        """Cut off all users of the store of ``round_`` or an earlier one, if it is served here."""
        with self._lock:
            if self._served <= round_:
                self._stores.close()

    def leave(self) -> None:
        """Stop using the store as a client. Cuts off this node's workers if they have a proxy."""
        agents, self.agents = self.agents, None
        if agents is not None:
            agents.close()
        self._proxy.close()

    def shutdown(self) -> None:
        """Close the round's store, and end every wait in it."""
        self.leave()
        with self._lock:
            self._stores.shutdown()

    def _use(self, connection: socket.socket) -> None:
        old, self.agents = self.agents, self._client(connection, self._interruption)
        if old is not None:
            old.close()

    def _client(self, connection: socket.socket, interruption: Interruption) -> PlainClient:
        return PlainClient(connection, prefix=_PREFIX, timeout=self._options.read_timeout, interruption=interruption)

    def _check_round(self, place: Assignment) -> None:
        """Check which round's store this is.

        The proxy was connected by address, and unless there is a range of ports, another round's store may be there by
        now. Raises ``EndpointUnreachable``.
        """
        assert self.agents is not None
        found = self.agents.get(_ROUND).decode(errors="replace")
        if found != str(place.round):
            self._proxy.close()
            raise EndpointUnreachable(
                f"the store at {place.master_addr} port {place.master_port} is that of round {found}, not of round "
                f"{place.round}: this node was late"
            )
