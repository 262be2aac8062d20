"""The nodes of backend ``parallel`` for ``rdzv bench rendezvous``."""

from __future__ import annotations

from typing import Any

from launcher.bench.rendezvous_elastic import ElasticField
from launcher.bench.rendezvous_nodes import HOST, RUN_ID, Counts, Service
from rdzv_plugins.endpoints import Endpoint


class ParallelField(ElasticField):
    """Their server is part of this process, unless there is a ``service``."""

    told_of_loss = True

    def __init__(self, count: int, service: Service, ttl: float, limit_s: float) -> None:
        from rdzv_plugins.kvstore.server import StoreServer
        from rdzv_plugins.kvstore.sessions import NativeCoordination

        server = self._server = None if service.port else StoreServer(HOST, run=RUN_ID)
        endpoint = self._endpoint = Endpoint(HOST, server.port if server is not None else service.port)

        def backend(number: int) -> NativeCoordination:
            mine = server if number == 0 else None
            return NativeCoordination(endpoint, RUN_ID, name="parallel", server=mine, who="the benchmark")

        super().__init__("parallel", str(endpoint), count, backend, ttl=ttl, limit_s=limit_s)

    def lose_one(self) -> None:
        """As when its process dies: the kernel closes the connection, nobody says good-bye."""
        self.close_one()

    def known_at(self) -> float | None:
        return None

    def counts(self) -> Counts:
        statistics = self._statistics()
        requests = {name: count for name, count in statistics["requests"].items() if count and name != "framed"}
        return Counts(
            signs=requests.pop("keep_alive", 0),
            requests=requests,
            cpu_s=float(sum(loop["cpu_s"] for loop in statistics["loops"])),
        )

    def _statistics(self) -> dict[str, Any]:
        from rdzv_plugins.kvstore.framing import ask_statistics

        return self._server.stats() if self._server is not None else ask_statistics(self._endpoint, 60.0)
