"""Elastic nodes as threads of this process, on a coordination service in its memory."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from kits.unit.memory_coordination import MemoryBackend, MemoryService
from rdzv_plugins.elastic.handler import ElasticHandler
from rdzv_plugins.elastic.keys import Round, decode
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.interfaces import Outcome, RendezvousInfo, Request

PATIENCE_S = 60.0
"""Nothing takes that long."""
QUICK = ElasticOptions(
    timeout=PATIENCE_S, last_call_timeout=PATIENCE_S, ttl=2, reach_timeout=PATIENCE_S, allow_same_host=True
)


class Node:
    """One node."""

    def __init__(self, job: Job, request: Request, options: ElasticOptions, hosts_service: bool) -> None:
        self._job = job
        self.backend = MemoryBackend(job.service, hosts_service=hosts_service)
        self.handler = ElasticHandler(self.backend, request, options)

    def join(self) -> Future[RendezvousInfo]:
        return self._job.pool.submit(self.handler.next_rendezvous)

    @property
    def id(self) -> str:
        return self.handler._self.me.node_id

    @property
    def asked(self) -> int:
        return self.backend.requests.total()

    def leave(self, outcome: Outcome) -> None:
        """As an agent does."""
        self.handler.leave(outcome)
        self.handler.shutdown()

    def die(self) -> None:
        """Its process is gone: the service notices, and it does not come back."""
        self.backend.lose(for_good=True)


class Job:
    """A context manager around the nodes of one job."""

    def __init__(self, nnodes: str = "2", **options: Any) -> None:
        low, _, high = nnodes.partition(":")
        self._sizes = {"min_nodes": int(low), "max_nodes": int(high or low)}
        self._options = ElasticOptions(**{**vars(QUICK), **options})
        self.service = MemoryService()
        self.pool = ThreadPoolExecutor(max_workers=80)
        self.nodes: list[Node] = []

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.backend.unreachable = True
            node.handler.shutdown()
        self.pool.shutdown(wait=error is None, cancel_futures=True)

    def node(self, *, hosts_service: bool = False, options: dict[str, Any] | None = None, **request: Any) -> Node:
        asked: dict[str, Any] = {"backend": "memory", "run_id": "job", "endpoint": "here:1", "nproc_per_node": 1}
        node = Node(
            self,
            Request(**{**asked, **self._sizes, **request}),
            ElasticOptions(**{**vars(self._options), **(options or {})}),
            hosts_service,
        )
        self.nodes.append(node)
        return node

    def start(self, count: int) -> list[Node]:
        """So many nodes, in a round of their own."""
        nodes = [self.node() for _ in range(count)]
        in_round(nodes)
        return nodes

    @property
    def round(self) -> Round:
        value = self.service.value("all/round")
        return decode(Round, value) if value is not None else Round()


def in_round(nodes: list[Node]) -> list[RendezvousInfo]:
    """All of these join, and are in one round."""
    futures = [node.join() for node in nodes]
    infos = [future.result(PATIENCE_S) for future in futures]
    assert sorted(info.rank for info in infos) == list(range(len(nodes)))
    assert {info.world_size for info in infos} == {len(nodes)}
    assert len({info.bootstrap_store_info.master_port for info in infos}) == 1
    return infos


def done(reason: str = "") -> Outcome:
    return Outcome("done", reason)
