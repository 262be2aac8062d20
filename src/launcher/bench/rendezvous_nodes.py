"""The nodes of ``rdzv bench rendezvous``: a handler each, made as ``rdzv-run`` makes it, or torch's own.

A node is used by a thread of its own, but for what says otherwise.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Protocol, cast

from launcher.bench.rendezvous_counted import CountedCoordination, CountedState, counted
from rdzv_plugins.host import PluginHost, create_handler
from rdzv_plugins.host.create import prepare
from rdzv_plugins.interfaces import Capability, Request

TORCH_C10D, TORCH_STATIC = "torch-c10d", "torch-static"
REFERENCES = (TORCH_C10D, TORCH_STATIC)
_LAST_CALL = timedelta(seconds=1)
"""Of torch's dynamic rendezvous after a loss: it waits for so long for more nodes. In the join it waits for all."""
_POLL_S = 0.1
"""As torch's agent asks its handler."""

_FIELDS = ("backend", "run_id", "endpoint", "min_nodes", "max_nodes", "nproc_per_node", "node_rank", "local_addr",
           "role", "max_restarts", "entrypoint")  # fmt: skip
"""Of a request before it is prepared, ``conf`` apart."""

VIEW, POLLED, NOT_TOLD, FIXED = "view", "polled", "not told", "fixed"
"""How a node learns that it is to join again: it waits on what its handler has been told; it asks its handler now and
then; it does not, but for its failing workers; there is no further round."""


class Node(Protocol):
    """One node of a run."""

    rank: int
    """In the last round, -1 before the first."""
    tells: str

    def join(self) -> None:
        """``next_rendezvous``."""
        ...

    def wait_over(self) -> None:
        """Wait until this node is to join again, for ever if it was lost."""
        ...

    def again(self) -> None:
        """It is to join again, where it is not told. Any thread."""
        ...

    def close(self) -> bool:
        """It goes and says so to the service; False where that is nothing special. Any thread."""
        ...

    def watch(self, key: str) -> bool:
        """From now on ``known_at`` tells when the service said that this key has gone. Any thread. False: it cannot."""
        ...

    @property
    def known_at(self) -> float | None:
        """By ``perf_counter``."""
        ...

    def facts(self) -> dict[str, Any]:
        """``asked``: requests so far by name, None where nobody knows; ``leads``; ``key``, by which others know it."""
        ...


class _Base:
    tells = NOT_TOLD

    def __init__(self) -> None:
        self.rank = -1
        self.known_at: float | None = None
        self._over = threading.Event()

    def wait_over(self) -> None:
        self._over.wait()
        self._over.clear()

    def again(self) -> None:
        self._over.set()

    def close(self) -> bool:
        return False

    def watch(self, key: str) -> bool:
        return False


class HostedNode(_Base):
    """Of an installed backend: request, options and handler by the plug-in host."""

    def __init__(self, host: PluginHost, request: Request) -> None:
        """May connect, and block. Raises what the backend raises."""
        super().__init__()
        entry = host.catalog.find(request.backend)
        made: list[CountedCoordination | CountedState | None] = []
        self._gone = False
        self._handler = create_handler(host, counted(entry, made.append), prepare(entry, request))
        self._made = made[-1]
        self._view: Any = None
        if Capability.ELASTIC not in entry.backend.capabilities:
            self.tells = FIXED
        elif isinstance(self._made, CountedCoordination):
            self.tells = VIEW
            self._view = cast(Any, self._handler)._inner._view  # of ElasticHandler
        elif self._made is None:
            self.tells = POLLED

    def join(self) -> None:
        self.rank = self._handler.next_rendezvous().rank

    def again(self) -> None:
        if isinstance(self._made, CountedState):
            _shorten_last_call(cast(Any, self._handler)._inner)
        super().again()

    def wait_over(self) -> None:
        if self.tells == VIEW:
            self._wait_told()
        elif self.tells == POLLED:
            while not self._handler.num_nodes_waiting():
                time.sleep(_POLL_S)
        else:
            super().wait_over()

    def _wait_told(self) -> None:
        view = self._view  # woken by all that can end a round, so nobody has to poll
        while True:
            seen = view.version
            if not self._gone and self._handler.num_nodes_waiting():
                return
            view.wait(seen, threading.TIMEOUT_MAX)

    def close(self) -> bool:
        if not isinstance(self._made, CountedCoordination) or self._made.session is None:
            return False
        self._gone = True
        self._made.session.inner.close()
        return True

    def watch(self, key: str) -> bool:
        if not key or not isinstance(self._made, CountedCoordination) or self._made.session is None:
            return False
        self.known_at = None

        def told(events: Any) -> None:
            if self.known_at is None and any(event.key == key and event.value is None for event in events):
                self.known_at = time.perf_counter()

        inner = self._made.session.inner
        inner.watch(key, told, timeout=inner.ttl + 60)
        return True

    def facts(self) -> dict[str, Any]:
        made = self._made
        session = made.session if isinstance(made, CountedCoordination) else None
        return {
            "asked": None if made is None else dict(made.asked),
            "leads": session is not None and session.leads,
            "key": "" if session is None else session.member_key,
        }


class TorchDynamicNode(_Base):
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
            local_addr=request.local_addr,  # as by --local-addr: else it looks its own name up
            is_host=number == 0,
            join_timeout=int(timeout_s),
            last_call_timeout=int(timeout_s),
            **request.conf,
        )
        backend, store = create_backend(parameters)
        self._count(backend)
        self._handler = create_handler(store, backend, parameters)

    def again(self) -> None:
        _shorten_last_call(self._handler)
        super().again()

    def join(self) -> None:
        self.rank = self._handler.next_rendezvous().rank

    def facts(self) -> dict[str, Any]:
        return {"asked": dict(self._asked), "leads": False, "key": ""}

    def _count(self, backend: Any) -> None:
        """Its reads and writes of the state that all nodes share."""
        call = backend._call_store

        def count(operation: str, *args: Any, **kwargs: Any) -> Any:
            self._asked[operation] += 1
            return call(operation, *args, **kwargs)

        backend._call_store = count


class TorchStaticNode(_Base):
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
        self.rank = self._handler.next_rendezvous().rank

    def facts(self) -> dict[str, Any]:
        return {"asked": None, "leads": False, "key": ""}


def _shorten_last_call(handler: Any) -> None:
    """Of a ``DynamicRendezvousHandler``. A time for all rounds would let the first one go without a late node."""
    handler._settings.timeout._set_timeouts(last_call=_LAST_CALL)


def as_request(data: Mapping[str, Any]) -> Request:
    """From what ``as_data`` made."""
    return Request(**{**data, "conf": MappingProxyType(dict(data["conf"])), "entrypoint": tuple(data["entrypoint"])})


def as_data(request: Request) -> dict[str, Any]:
    """A request that was not prepared yet, as JSON can hold it."""
    return {name: getattr(request, name) for name in _FIELDS} | {"conf": dict(request.conf)}


def make(number: int, target: str, host: PluginHost, request: Request, timeout_s: float) -> Node:
    """One node. Raises what its backend raises."""
    if target == TORCH_C10D:
        return TorchDynamicNode(number, request, timeout_s)
    if target == TORCH_STATIC:
        return TorchStaticNode(number, request, timeout_s)
    return HostedNode(host, request)
