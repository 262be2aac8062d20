"""What the errors of a round's store mean to its agents.

torch's errors are recognised by their class names, because importing them would import torch.
"""

from __future__ import annotations

from datetime import timedelta

from rdzv_plugins.errors import EndpointLost, SpareReleased, StoreLost, StoreTimeout
from rdzv_plugins.runtime import Runtime
from rdzv_plugins.store import Store


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


def appear(store: Store, keys: list[str], seconds: float, runtime: Runtime) -> bool:
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
