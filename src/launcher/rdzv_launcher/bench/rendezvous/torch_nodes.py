"""torch's own rendezvous as nodes of ``rdzv bench rendezvous``, and everything inside torch that the benchmark touches.

Two things are not public interfaces of torch: ``_call_store`` of its ``C10dRendezvousBackend``, through which all
requests go, is wrapped to count them; and ``_settings.timeout._set_timeouts`` of its ``DynamicRendezvousHandler``
shortens the last call of rounds after the first. tests/bench/test_bench_rendezvous.py fails if torch changes them.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from rdzv_launcher.bench.rendezvous.nodes import FIXED, BaseNode
from rdzv_plugins.interfaces import Request

_LAST_CALL = timedelta(seconds=1)
"""How long torch's dynamic rendezvous waits for more nodes after a loss. In the join it waits for all."""


class TorchDynamicNode(BaseNode):
    """torch's ``DynamicRendezvousHandler`` on its ``C10dRendezvousBackend``, as plain torchrun makes them."""

    def __init__(self, number: int, request: Request, timeout_s: float) -> None:
        """Connects to the store, which the node with number 0 serves."""
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
        from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

        super().__init__()
        self._asked: Counter[str] = Counter()
        parameters = RendezvousParameters(
            backend="c10d",
            endpoint=request.endpoint,
            run_id=request.run_id,
            min_nodes=request.min_nodes,
            max_nodes=request.max_nodes,
            local_addr=request.local_addr,  # as by --local-addr: otherwise it looks its own name up
            is_host=number == 0,
            join_timeout=int(timeout_s),
            last_call_timeout=int(timeout_s),
            **request.conf,
        )
        backend, store = create_backend(parameters)
        self._count(backend)
        self._handler = create_handler(store, backend, parameters)

    def again(self) -> None:
        shorten_last_call(self._handler)
        super().again()

    def join(self) -> None:
        joined = self._handler.next_rendezvous()
        self.rank, self.world = joined.rank, joined.world_size

    def facts(self) -> dict[str, Any]:
        return {"asked": dict(self._asked), "leads": False, "key": ""}

    def _count(self, backend: Any) -> None:
        """Count its reads and writes of the state that all nodes share."""
        call = backend._call_store

        def count(operation: str, *args: Any, **kwargs: Any) -> Any:
            self._asked[operation] += 1
            return call(operation, *args, **kwargs)

        backend._call_store = count


class TorchStaticNode(BaseNode):
    """torch's static rendezvous, as plain torchrun makes it without a backend. It connects when it joins."""

    tells = FIXED

    def __init__(self, number: int, request: Request, timeout_s: float) -> None:
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import create_rdzv_handler

        super().__init__()
        self._handler = create_rdzv_handler(
            RendezvousParameters(
                backend="static",
                endpoint=request.endpoint,
                run_id=request.run_id,
                min_nodes=request.max_nodes,
                max_nodes=request.max_nodes,
                rank=number,
                timeout=int(timeout_s),
            )
        )

    def join(self) -> None:
        joined = self._handler.next_rendezvous()
        self.rank, self.world = joined.rank, joined.world_size

    def facts(self) -> dict[str, Any]:
        return {"asked": None, "leads": False, "key": ""}


def shorten_last_call(handler: Any) -> None:
    """Shorten the last call of a handler that joins again: the first round has to wait for all nodes."""
    handler._settings.timeout._set_timeouts(last_call=_LAST_CALL)
