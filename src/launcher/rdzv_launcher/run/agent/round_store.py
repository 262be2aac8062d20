"""What agents need of the store of their round, and what its errors mean. Any ``torch.distributed.Store`` will do.

torch's errors are told by the names of their classes: to import them is to import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from rdzv_plugins.errors import EndpointLost, SpareReleased, StoreLost, StoreTimeout


class RoundStore(Protocol):
    """The part of ``torch.distributed.Store`` that agents use. Keys are private to the round and to its agents."""

    @property
    def timeout(self) -> timedelta:
        """How long waits may take where nothing else is said."""
        ...

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes:
        """The value of a key; waits until it is there."""
        ...

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which is 0 at first; returns what it is now."""
        ...

    def check(self, keys: list[str]) -> bool:
        """True if all of the keys are there."""
        ...

    def multi_set(self, keys: list[str], values: list[str]) -> None: ...

    def multi_get(self, keys: list[str]) -> Sequence[bytes]: ...

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Return when all of the keys are there; raises an error for which ``is_timeout`` holds if they are not."""
        ...


def is_lost(error: Exception) -> bool:
    """The store has gone, or the way to it."""
    return isinstance(error, (ConnectionError, EndpointLost, StoreLost)) or _is_a(error, "DistNetworkError")


def is_timeout(error: Exception) -> bool:
    """What was waited for has not come: TCPStore says so by a ``DistStoreError``, FileStore by ``RuntimeError``."""
    return isinstance(error, (StoreTimeout, RuntimeError, TimeoutError)) and not is_lost(error)


def is_graceful_exit(error: Exception) -> bool:
    """The job is done without this node, which has not taken part. Of torch: ``RendezvousGracefulExitError``."""
    return isinstance(error, SpareReleased) or _is_a(error, "RendezvousGracefulExitError")


def _is_a(error: Exception, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(error).__mro__)
