"""The workers' store of a round, from both ends: rank 0 serves it, every node dials it before it counts as reached.

With ``store=tiered`` what workers and agents speak to after that is this node's proxy.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable

from rdzv_plugins.elastic.elastic_options import ElasticOptions
from rdzv_plugins.elastic.keys import Assignment
from rdzv_plugins.elastic.node_proxy import NodeProxy, OnLost
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.kvstore.plain_client import PlainClient
from rdzv_plugins.kvstore.reach import try_connect
from rdzv_plugins.kvstore.torch_store import greet_store
from rdzv_plugins.kvstore.worker_stores import WorkerStores

_PREFIX = "agents"
"""The agents of a round share its workers' store, under this prefix."""
_ATTEMPT_S = 1.0
_PAUSE_S = 0.2
_ANSWER_S = 10.0
"""In this process: longer than it can be kept from running."""


class RoundStore:
    """At most one at a time. Thread-safe."""

    def __init__(self, options: ElasticOptions, on_lost: OnLost) -> None:
        """``on_lost`` is called when this node's proxy has lost the store."""
        self._options = options
        self._stores = WorkerStores(options, timeout=options.read_timeout)
        self._lock = threading.Lock()
        self._patience = max(options.reach_timeout, options.ttl + 1)
        self._proxy = NodeProxy(options, self._patience, on_lost)
        self._reaching, self._give_up_at, self._retry_at = 0, 0.0, math.inf
        self._served = 0  # the round whose store is served here
        self._local_addr = ""  # on the way to the store
        self.agents: PlainClient | None = None
        """For the agents of the round that was reached last."""

    def serve(self, place: Assignment, address: str) -> tuple[int, str, int]:
        """Rank 0: serve it, listening before anybody knows. Returns (round, address, port). Raises ``AddressInUse``."""
        with self._lock:
            store = self._stores.open(address, f"the workers' store of round {place.round}")
            self._served = place.round
            return place.round, address, store.port

    @property
    def retry_at(self) -> float:
        """When ``reach`` is to be called again, in the monotonic clock's seconds; infinite if it is not."""
        return self._retry_at

    def reach(self, place: Assignment) -> str | None:
        """Dial it; returns "", or why that is not possible, or None: to be tried again.

        Blocks for about a second at most: the round may be given up meanwhile, since rank 0 was lost.
        """
        now = time.monotonic()
        if place.round != self._reaching:
            # a node that cannot be reached because it is lost is to be known as lost first
            self._reaching, self._give_up_at = place.round, now + self._patience
        self._retry_at = math.inf
        endpoint = Endpoint(place.master_addr, place.master_port)
        try:
            connection, reason = try_connect(endpoint, _ATTEMPT_S, greet_store)
        except EndpointUnreachable as error:  # something else than a store answers
            return str(error)
        if connection is None:
            if time.monotonic() >= self._give_up_at:
                return f"{reason}, for {self._patience:g} s"
            self._retry_at = time.monotonic() + _PAUSE_S
            return None
        self._local_addr = str(connection.getsockname()[0])
        self._use(connection)
        return ""

    def open(self, place: Assignment, address: str | None, give_up: Callable[[], bool]) -> Endpoint:
        """The round is complete: where the workers of this node find its store.

        ``address`` is the given one of this node. See ``NodeProxy.open`` for the rest.
        """
        if self._options.store != "tiered":
            return Endpoint(place.master_addr, place.master_port)
        assert self.agents is not None
        where = self._proxy.open(place, self.agents, address or self._local_addr, give_up)
        if self._proxy.used:
            connection, reason = try_connect(where, _ANSWER_S, greet_store)
            if connection is None:
                raise EndpointUnreachable(f"this node's own proxy at {where} does not answer: {reason}")
            self._use(connection)
        return where

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the workers of the round."""
        return self._proxy.environment

    def is_cut_off(self) -> bool:
        """This node's proxy has no connection to the store."""
        return self._proxy.is_cut_off()

    @property
    def is_parent(self) -> bool:
        """Other nodes' proxies depend on this one's."""
        return self._proxy.is_parent

    def close(self, round_: int) -> None:
        """Cut off whoever uses the store of ``round_`` or an earlier one, if it is served here."""
        with self._lock:
            if self._served <= round_:
                self._stores.close()

    def leave(self) -> None:
        """As a client: use it no longer. The workers of this node are cut off, where they have a proxy."""
        agents, self.agents = self.agents, None
        if agents is not None:
            agents.close()
        self._proxy.close()

    def shutdown(self) -> None:
        """End everything."""
        self.leave()
        with self._lock:
            self._stores.shutdown()

    def _use(self, connection: socket.socket) -> None:
        old, self.agents = self.agents, PlainClient(connection, prefix=_PREFIX, timeout=self._options.read_timeout)
        if old is not None:
            old.close()
