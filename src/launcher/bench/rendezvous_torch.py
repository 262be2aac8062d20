"""torch's own nodes for ``rdzv bench rendezvous``."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from launcher.bench.rendezvous_nodes import HOST, LATER_S, RUN_ID, Counts

_LAST_CALL_S = 1


class _TorchNode:
    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.over = threading.Event()
        self.rank = -1

    def join(self) -> None:
        self.rank = self.handler.next_rendezvous().rank

    def wait_over(self) -> None:
        self.over.wait()
        self.over.clear()


class TorchField:
    """torch's ``DynamicRendezvousHandler`` on its ``C10dRendezvousBackend``, as plain torchrun makes them."""

    told_of_loss = True  # here; in a job its nodes are not, and their failing workers make them join again

    def __init__(self, count: int, limit_s: float) -> None:
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
        from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

        self._counts: Counter[str] = Counter()
        self.nodes: list[_TorchNode] = []
        endpoint = f"{HOST}:0"
        for number in range(count):
            parameters = RendezvousParameters(
                backend="c10d",
                endpoint=endpoint,
                run_id=RUN_ID,
                min_nodes=count - 1,
                max_nodes=count,
                local_addr=HOST,  # as by --local-addr: else it looks its own name up
                is_host=number == 0,
                join_timeout=int(limit_s + LATER_S),
                last_call_timeout=_LAST_CALL_S,
            )
            backend, store = create_backend(parameters)
            endpoint = f"{HOST}:{store.port}"
            self._count(backend)
            self.nodes.append(_TorchNode(create_handler(store, backend, parameters)))

    def choose_one(self) -> None:
        self._chosen = max(self.nodes, key=lambda node: node.rank)

    def lose_one(self) -> None:
        """It sends no more signs of life. Nodes of torch are not told: their failing workers make them join again."""
        self._chosen.handler._stop_heartbeats()
        for node in self.nodes:
            if node is not self._chosen:
                node.over.set()

    def close_one(self) -> None:
        raise NotImplementedError("not measured")

    def known_at(self) -> float | None:
        return None

    def counts(self) -> Counts:
        return Counts(dict(self._counts))

    def per_node(self) -> dict[str, float]:
        return {name: count / len(self.nodes) for name, count in self._counts.items()}

    def _count(self, backend: Any) -> None:
        """Its reads and writes of the state that all nodes share."""
        call = backend._call_store

        def counted(operation: str, *args: Any, **kwargs: Any) -> Any:
            self._counts[operation] += 1
            return call(operation, *args, **kwargs)

        backend._call_store = counted
