"""What agents need from the store of their round, and what its errors mean. Any ``torch.distributed.Store`` will do.

torch's errors are recognised by their class names, because importing them would import torch.
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
        """How long waits may take unless stated otherwise."""
        ...

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes:
        """The value of a key; waits until the key exists."""
        ...

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which starts at 0; returns its new value."""
        ...

    def check(self, keys: list[str]) -> bool:
        """True if all of the keys exist."""
        ...

    def multi_set(self, keys: list[str], values: list[str]) -> None: ...

    def multi_get(self, keys: list[str]) -> Sequence[bytes]: ...

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Return when all of the keys exist; otherwise raises an error for which ``is_timeout`` holds."""
        ...


def is_lost(error: Exception) -> bool:
    """Whether the store, or the connection to it, is lost."""
    return isinstance(error, (ConnectionError, EndpointLost, StoreLost)) or _is_a(error, "DistNetworkError")


def is_timeout(error: Exception) -> bool:
    """Whether a wait timed out: TCPStore says so by a ``DistStoreError``, FileStore by ``RuntimeError``."""
    return isinstance(error, (StoreTimeout, RuntimeError, TimeoutError)) and not is_lost(error)


def is_graceful_exit(error: Exception) -> bool:
    """Whether the job is done without this node, which has not taken part: torch's ``RendezvousGracefulExitError``."""
    return isinstance(error, SpareReleased) or _is_a(error, "RendezvousGracefulExitError")


def _is_a(error: Exception, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(error).__mro__)
