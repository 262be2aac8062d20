"""The nodes of ``rdzv bench rendezvous``, all in one process: what every target offers.

Handlers are made before the clock starts. torch's connect their store then, which is therefore left out of its
figures; ours connect in ``next_rendezvous``, which is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

RUN_ID = "bench"
HOST = "127.0.0.1"
LATER_S = 60
"""A node gives up after the benchmark has."""


@dataclass(frozen=True)
class Service:
    """A service in another process."""

    port: int = 0
    """0: there is none, the service is part of this process."""
    pid: int = 0


@dataclass(frozen=True)
class Counts:
    """Of the service, since it started."""

    requests: dict[str, int] = field(default_factory=dict)
    """What it has been asked, by name; signs of life left out."""
    signs: int = 0
    """Of life."""
    syncs: int = 0
    """How often it made sure that what it wrote is on disk."""
    sync_s: float = 0.0
    """And how long that took."""
    cpu_s: float = 0.0
    """Processor time of its threads; 0 where that cannot be told from the rest."""


class Node(Protocol):
    """One handler. ``join`` and ``wait_over`` are called by a thread of its own."""

    def join(self) -> None:
        """``next_rendezvous``."""
        ...

    def wait_over(self) -> None:
        """Wait until this node is to join again, for ever if it was lost. Costs nothing meanwhile."""
        ...


class Field(Protocol):
    """All nodes of a run."""

    @property
    def nodes(self) -> Sequence[Node]: ...

    @property
    def told_of_loss(self) -> bool:
        """The service hears of a loss at once. If not, an orderly end is something else, and is measured, too."""
        ...

    def choose_one(self) -> None:
        """Choose a member that decides nothing and serves nothing to be the next that goes."""
        ...

    def lose_one(self) -> None:
        """It goes without a word."""
        ...

    def close_one(self) -> None:
        """It goes, and says so to the service."""
        ...

    def known_at(self) -> float | None:
        """When the service said that it has gone, by ``perf_counter``; None: not known apart from the loss."""
        ...

    def counts(self) -> Counts:
        """What the service says now."""
        ...

    def per_node(self) -> dict[str, float]:
        """What a plain node has asked so far: the median, where each is counted; else the mean."""
        ...


def make(target: str, count: int, service: Service, ttl: float, limit_s: float) -> Field:
    """The nodes of one target. Without a ``service``, parallel's first node serves."""
    if target == "torch":
        from launcher.bench.rendezvous_torch import TorchField

        return TorchField(count, limit_s)
    if target == "etcd":
        from launcher.bench.rendezvous_etcd import EtcdField

        return EtcdField(count, service, ttl, limit_s)
    from launcher.bench.rendezvous_parallel import ParallelField

    return ParallelField(count, service, ttl, limit_s)
