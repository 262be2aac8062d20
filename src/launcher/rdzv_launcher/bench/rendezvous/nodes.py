"""What a node of ``rdzv bench rendezvous`` is: a handler that joins, and is told to join again.

Each node is used by its own thread, except where a method says otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from rdzv_plugins.errors import RdzvError
from rdzv_plugins.interfaces import Request

_FIELDS = ("backend", "run_id", "endpoint", "min_nodes", "max_nodes", "nproc_per_node", "node_rank", "local_addr",
           "role", "max_restarts", "entrypoint")  # fmt: skip
"""The fields of a request that is not prepared yet, except ``conf``."""

VIEW, POLLED, NOT_TOLD, FIXED = "view", "polled", "not told", "fixed"
"""How a node learns that it has to join again: it waits on what its handler has been told; it asks its handler now and
then; it learns it only from its failing workers; there is no further round.
"""


class Node(Protocol):
    """What the benchmark asks of one simulated node."""

    rank: int
    """Its rank in the last round, -1 before the first."""
    world: int
    """How many nodes that round had, 0 before the first."""
    tells: str

    def join(self) -> None:
        """Join, by ``next_rendezvous``."""
        ...

    def wait_over(self) -> None:
        """Wait until this node has to join again, for ever if it was lost."""
        ...

    def again(self) -> None:
        """Make it join again, if it is not told. Any thread."""
        ...

    def close(self) -> bool:
        """Leave, and tell the service; False if that is nothing special. Any thread."""
        ...

    def watch(self, key: str) -> bool:
        """From now on ``known_at`` says when the service reported this key as gone. Any thread. False: it cannot."""
        ...

    @property
    def known_at(self) -> float | None:
        """When the watched key was reported as gone, according to ``perf_counter``."""
        ...

    def facts(self) -> dict[str, Any]:
        """``asked``: requests so far by name, None if unknown; ``leads``; ``key``, by which others know it."""
        ...


class BaseNode:
    """What most nodes do: they are not told that they have to join again, and say nothing when they go."""

    tells = NOT_TOLD

    def __init__(self) -> None:
        self.rank, self.world = -1, 0
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


def as_request(data: Mapping[str, Any]) -> Request:
    """The request from which ``as_data`` has made data."""
    return Request(**{**data, "conf": MappingProxyType(dict(data["conf"])), "entrypoint": tuple(data["entrypoint"])})


def as_data(request: Request) -> dict[str, Any]:
    """A request that was not prepared yet, in a form that JSON can hold."""
    return {name: getattr(request, name) for name in _FIELDS} | {"conf": dict(request.conf)}


def gave_up(error: Exception) -> dict[str, Any]:
    """Whatever a backend raises is a result. The error's type is included unless the error speaks for itself."""
    text = str(error).strip() or type(error).__name__
    return {"gave_up": text if isinstance(error, RdzvError) else f"{type(error).__name__}: {text}"}
