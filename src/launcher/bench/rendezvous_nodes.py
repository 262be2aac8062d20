"""The nodes of ``rdzv bench rendezvous``, all in one process: what they have in common, and ours.

Handlers are made before the clock starts. torch's connect their store then, which is therefore left out of its
figures; ours connect in ``next_rendezvous``, which is counted.
"""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from rdzv_plugins.coordination import CoordinationBackend, Event, KeyValue, OnEvents, Session, Watch
from rdzv_plugins.elastic import keys
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import ConnectionLost

RUN_ID = "bench"
HOST = "127.0.0.1"
LAST_CALL_S = 1
LATER_S = 60
"""A node gives up after the benchmark has."""


class Node(Protocol):
    """One handler. ``join`` and ``wait_over`` are called by a thread of its own."""

    def join(self) -> None:
        """``next_rendezvous``."""
        ...

    def wait_over(self) -> None:
        """Wait until this node is to join again. Costs nothing meanwhile."""
        ...


class Field(Protocol):
    """All nodes of a run."""

    @property
    def nodes(self) -> Sequence[Node]: ...

    def lose_one(self) -> Node:
        """One member that decides nothing and serves nothing goes without a word; returns it."""
        ...

    def requests(self) -> dict[str, int]:
        """What the service has been asked so far, by name; signs of life left out."""
        ...

    def per_node(self) -> dict[str, float]:
        """What a plain node has asked so far: the median, where each is counted; else the mean."""
        ...

    def server_cpu_s(self) -> float:
        """Processor time of the service's threads so far; 0 where that cannot be told from the rest."""
        ...


def make(target: str, count: int, port: int, ttl: float, limit_s: float) -> Field:
    """``port`` is that of a server in another process; 0: ours is part of this one."""
    if target == "torch":
        from launcher.bench.rendezvous_torch import TorchField

        return TorchField(count, limit_s)
    return OurField(count, port, ttl, limit_s)


class _Ears:
    """A session, and an event that is set whenever its watches tell something: so nobody has to poll."""

    def __init__(self, inner: Session, heard: threading.Event, asked: Counter[str]) -> None:
        self._inner, self._heard, self._asked = inner, heard, asked
        self.leads = False

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._inner, name)
        if name in ("put", "list", "delete"):
            self._asked[name] += 1
        return asked

    def create(self, key: str, value: bytes, *, ephemeral: bool = False, timeout: float) -> tuple[bool, KeyValue]:
        self._asked["put" if key != keys.LEADER else "lead"] += 1
        answer = self._inner.create(key, value, ephemeral=ephemeral, timeout=timeout)
        self.leads |= key == keys.LEADER and answer[0]
        return answer

    def watch(self, prefix: str, on_events: OnEvents, *, after: int = 0, timeout: float) -> Watch:
        def told(events: Sequence[Event]) -> None:
            on_events(events)
            self._heard.set()

        self._asked["watch"] += 1
        return self._inner.watch(prefix, told, after=after, timeout=timeout)


class _Backend:
    """A ``CoordinationBackend`` whose sessions have ears."""

    def __init__(self, inner: CoordinationBackend) -> None:
        self._inner = inner
        self.heard = threading.Event()
        self.asked: Counter[str] = Counter()
        self.session: _Ears | None = None

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def hosts_service(self) -> bool:
        return self._inner.hosts_service

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> Session:
        self.asked["open_session"] += 1
        inner = self._inner.open_session(ttl, on_lost=on_lost, timeout=timeout)
        self.session = _Ears(inner, self.heard, self.asked)
        return cast(Session, self.session)

    def close(self) -> None:
        self._inner.close()


@dataclass
class _OurNode:
    handler: Any
    backend: _Backend
    rank: int = -1

    def join(self) -> None:
        self.rank = self.handler.next_rendezvous().rank

    def wait_over(self) -> None:
        while not self.handler.num_nodes_waiting():
            self.backend.heard.wait()
            self.backend.heard.clear()


class OurField:
    """The handlers of backend ``parallel``."""

    def __init__(self, count: int, port: int, ttl: float, limit_s: float) -> None:
        from rdzv_plugins.elastic.elastic_options import ElasticOptions
        from rdzv_plugins.elastic.handler import ElasticHandler
        from rdzv_plugins.interfaces import Request
        from rdzv_plugins.kvstore.server import StoreServer
        from rdzv_plugins.kvstore.sessions import NativeCoordination

        self._server = None if port else StoreServer(HOST, run=RUN_ID)
        self._endpoint = Endpoint(HOST, self._server.port if self._server is not None else port)
        where = str(self._endpoint)
        request = Request("parallel", RUN_ID, where, min_nodes=count - 1, max_nodes=count, nproc_per_node=1)
        # all nodes are asked to dial the workers' store at once here, on few cores
        options = ElasticOptions(
            timeout=limit_s + LATER_S,
            ttl=ttl,
            reach_timeout=limit_s,
            last_call_timeout=LAST_CALL_S,
            allow_same_host=True,
        )
        self.nodes: list[_OurNode] = []
        for number in range(count):
            server = self._server if number == 0 else None
            inner = NativeCoordination(self._endpoint, RUN_ID, name="parallel", server=server, who="the benchmark")
            backend = _Backend(inner)
            self.nodes.append(_OurNode(ElasticHandler(backend, request, options), backend))

    def lose_one(self) -> _OurNode:
        """As when its process dies: the kernel closes the connection, nobody says good-bye."""
        last = max(
            (node for node in self.nodes[1:] if node.backend.session and not node.backend.session.leads),
            key=lambda node: node.rank,
        )
        assert last.backend.session is not None, "it has joined"
        cast(Session, last.backend.session).close()
        return last

    def requests(self) -> dict[str, int]:
        counts = self._statistics()["requests"]
        return {name: count for name, count in counts.items() if count and name not in ("framed", "keep_alive")}

    def per_node(self) -> dict[str, float]:
        """The attempts to lead are left out: who tries depends on who came first."""
        names = ("open_session", "watch", "put", "list", "delete")
        counts = {name: statistics.median_low(node.backend.asked[name] for node in self.nodes) for name in names}
        return {name: count for name, count in counts.items() if count}

    def server_cpu_s(self) -> float:
        return float(sum(loop["cpu_s"] for loop in self._statistics()["loops"]))

    def _statistics(self) -> dict[str, Any]:
        from rdzv_plugins.kvstore.framing import ask_statistics

        return self._server.stats() if self._server is not None else ask_statistics(self._endpoint, 60.0)
