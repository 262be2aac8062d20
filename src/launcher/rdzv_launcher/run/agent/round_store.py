"""What agents need from the store of their round, and what its errors mean. Any ``torch.distributed.Store`` will do.

torch's errors are recognised by their class names, because importing them would import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from rdzv_plugins.errors import EndpointLost, SpareReleased, StoreLost, StoreTimeout
from rdzv_plugins.runtime import Runtime


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


def is_timeout(error: Exception, *, over: bool = False) -> bool:
    """Whether a wait timed out: the error's class says so, as TCPStore's ``DistStoreError`` does.

    FileStore raises a mere ``RuntimeError``, as a server that objects may: that is one if the wait's limit is ``over``.
    """
    if is_lost(error):
        return False
    said = isinstance(error, (StoreTimeout, TimeoutError)) or _is_a(error, "DistStoreError")
    return said or (over and type(error) is RuntimeError)


def appear(store: RoundStore, keys: list[str], seconds: float, runtime: Runtime) -> bool:
    """Wait for all of the keys; False if they are not there after ``seconds``, and never earlier: no loop can spin.

    Raises every error that is not a time-out.
    """
    deadline = runtime.monotonic() + seconds
    try:
        store.wait(keys, timedelta(seconds=seconds))
        return True
    except Exception as error:
        left = deadline - runtime.monotonic()
        if not is_timeout(error, over=left <= seconds / 10):
            raise
    runtime.sleep(max(0.0, left))
    return False


def is_graceful_exit(error: Exception) -> bool:
    """Whether the job is done without this node, which has not taken part: torch's ``RendezvousGracefulExitError``."""
    return isinstance(error, SpareReleased) or _is_a(error, "RendezvousGracefulExitError")


def _is_a(error: Exception, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(error).__mro__)
