"""The nodes of backend ``etcd`` for ``rdzv bench rendezvous``, on an etcd in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

from launcher.bench.etcd_server import ask_metrics
from launcher.bench.measure import exact_cpu_seconds
from launcher.bench.rendezvous_elastic import ElasticField
from launcher.bench.rendezvous_nodes import HOST, RUN_ID, Counts, Service
from rdzv_plugins.coordination import Event
from rdzv_plugins.endpoints import Endpoint


class EtcdField(ElasticField):
    """All nodes are etcd's clients; nobody serves anything but the workers' store."""

    told_of_loss = False

    def __init__(self, count: int, service: Service, ttl: float, limit_s: float) -> None:
        from rdzv_plugins.backends.etcd.coordination import EtcdCoordination

        self._service = service
        self._known_at: float | None = None
        self._limit_s = limit_s
        endpoint = Endpoint(HOST, service.port)
        super().__init__(
            "etcd",
            str(endpoint),
            count,
            lambda _: EtcdCoordination([endpoint], RUN_ID),
            ttl=ttl,
            limit_s=limit_s,
        )

    def choose_one(self) -> None:
        """Another node watches its key, beside the leader: it tells when etcd has deleted it."""
        super().choose_one()
        self._known_at = None
        key = self.chosen.session.member_key

        def told(events: Sequence[Event]) -> None:
            if self._known_at is None and any(event.key == key and event.value is None for event in events):
                self._known_at = time.perf_counter()

        self.nodes[0].session.inner.watch(key, told, timeout=self._limit_s)

    def lose_one(self) -> None:
        """As when its process dies: its lease is no longer kept alive, and ends by itself."""
        self.chosen.gone = True
        cast(Any, self.chosen.session.inner).abandon()

    def known_at(self) -> float | None:
        return self._known_at

    def counts(self) -> Counts:
        cpu_s = exact_cpu_seconds(self._service.pid)  # before it is asked for figures, which costs it some
        metrics = ask_metrics(self._service.port)
        return Counts(dict(metrics.requests), metrics.keep_alives, metrics.syncs, metrics.sync_s, cpu_s)
