"""Our own nodes for ``rdzv bench rendezvous``: the handlers of the elastic rendezvous, over any backend."""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from launcher.bench.rendezvous_nodes import LATER_S, RUN_ID
from rdzv_plugins.coordination import CoordinationBackend, KeyValue, OnEvents, Session, Watch
from rdzv_plugins.elastic import keys
from rdzv_plugins.errors import ConnectionLost

_GO = 2
"""How many nodes go, one after the other."""


class Counted:
    """A session that counts what it is asked, and knows whether it leads."""

    def __init__(self, inner: Session, asked: Counter[str]) -> None:
        self.inner, self._asked = inner, asked
        self.leads = False
        self.member_key = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def create(self, key: str, value: bytes, *, ephemeral: bool = False, timeout: float) -> tuple[bool, KeyValue]:
        self._asked["put" if key != keys.LEADER else "lead"] += 1
        answer = self.inner.create(key, value, ephemeral=ephemeral, timeout=timeout)
        self.leads |= key == keys.LEADER and answer[0]
        return answer

    def put(
        self, items: Mapping[str, bytes], *, ephemeral: bool = False, guard: KeyValue | None = None, timeout: float
    ) -> int | None:
        self._asked["put"] += 1
        if ephemeral:
            self.member_key = next((key for key in items if key.startswith(keys.MEMBERS)), self.member_key)
        return self.inner.put(items, ephemeral=ephemeral, guard=guard, timeout=timeout)

    def delete(self, keys: Iterable[str], *, guard: KeyValue | None = None, timeout: float) -> bool:
        self._asked["delete"] += 1
        return self.inner.delete(keys, guard=guard, timeout=timeout)

    def list(self, prefix: str, *, timeout: float) -> tuple[Sequence[KeyValue], int]:
        self._asked["list"] += 1
        return self.inner.list(prefix, timeout=timeout)

    def watch(self, prefix: str, on_events: OnEvents, *, after: int = 0, timeout: float) -> Watch:
        self._asked["watch"] += 1
        return self.inner.watch(prefix, on_events, after=after, timeout=timeout)


class _Backend:
    """A ``CoordinationBackend`` whose sessions are counted."""

    def __init__(self, inner: CoordinationBackend) -> None:
        self._inner = inner
        self.asked: Counter[str] = Counter()
        self.session: Counted | None = None

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def hosts_service(self) -> bool:
        return self._inner.hosts_service

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> Session:
        self.asked["open_session"] += 1
        inner = self._inner.open_session(ttl, on_lost=on_lost, timeout=timeout)
        self.session = Counted(inner, self.asked)
        return cast(Session, self.session)

    def close(self) -> None:
        self._inner.close()


class ElasticNode:
    """An ``ElasticHandler``."""

    def __init__(self, handler: Any, backend: _Backend) -> None:
        self._handler = handler
        self.backend = backend
        self.rank = -1
        self.gone = False

    def join(self) -> None:
        self.rank = self._handler.next_rendezvous().rank

    def wait_over(self) -> None:
        view = self._handler._view  # woken by all that can end a round, so nobody has to poll
        while True:
            seen = view.version
            if not self.gone and self._handler.num_nodes_waiting():
                return
            view.wait(seen, threading.TIMEOUT_MAX)

    @property
    def session(self) -> Counted:
        assert self.backend.session is not None, "it has joined"
        return self.backend.session


class ElasticField:
    """The handlers over one backend each, as ``make_backend`` makes it for the node with that number."""

    def __init__(
        self,
        name: str,
        endpoint: str,
        count: int,
        make_backend: Callable[[int], CoordinationBackend],
        *,
        ttl: float,
        limit_s: float,
    ) -> None:
        from rdzv_plugins.elastic.elastic_options import ElasticOptions
        from rdzv_plugins.elastic.handler import ElasticHandler
        from rdzv_plugins.interfaces import Request

        request = Request(name, RUN_ID, endpoint, min_nodes=count - _GO, max_nodes=count, nproc_per_node=1)
        # all nodes are asked to dial the workers' store at once here, on few cores; the round waits for all of them
        options = ElasticOptions(
            timeout=ttl + limit_s + LATER_S,
            ttl=ttl,
            reach_timeout=ttl + limit_s,
            last_call_timeout=limit_s,
            allow_same_host=True,
        )
        self.nodes: list[ElasticNode] = []
        for number in range(count):
            backend = _Backend(make_backend(number))
            self.nodes.append(ElasticNode(ElasticHandler(backend, request, options), backend))
        self.chosen = self.nodes[-1]

    def choose_one(self) -> None:
        """The first is left out: it may serve."""
        plain = (node for node in self.nodes[1:] if not node.gone and not node.session.leads)
        self.chosen = max(plain, key=lambda node: node.rank)

    def close_one(self) -> None:
        self.chosen.gone = True
        self.chosen.session.inner.close()

    def per_node(self) -> dict[str, float]:
        """The attempts to lead are left out: who tries depends on who came first."""
        names = ("open_session", "watch", "put", "list", "delete")
        left = [node for node in self.nodes if not node.gone and node is not self.chosen]
        # who leads, or serves the workers' store, asks for more
        plain = [node for node in left if node.rank > 0 and not node.session.leads] or left
        counts = {name: statistics.median_low(node.backend.asked[name] for node in plain) for name in names}
        return {name: count for name, count in counts.items() if count}
