"""Our errors as torch's, and torch's as ours: code around torch's agent and torch's stores knows torch's by type."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta

from torch.distributed import DistError, DistNetworkError, DistStoreError
from torch.distributed.elastic.rendezvous import api

from rdzv_plugins import errors

_TORCH = (
    (errors.SpareReleased, api.RendezvousGracefulExitError),
    (errors.RendezvousTimeout, api.RendezvousTimeoutError),
    (errors.EndpointUnreachable, api.RendezvousConnectionError),
    (errors.AddressInUse, api.RendezvousConnectionError),
    (errors.RendezvousClosed, api.RendezvousClosedError),
    (errors.RendezvousFailed, api.RendezvousStateError),
)


def as_torch(error: errors.RendezvousFailed) -> errors.RendezvousFailed:
    """Turn an error into one that is also torch's rendezvous error of its kind."""
    both = _combined(type(error))
    twin: errors.RendezvousFailed = both.__new__(both, *error.args)
    twin.__dict__.update(error.__dict__)
    twin.__cause__ = error.__cause__
    return twin


def _combined(ours: type[errors.RendezvousFailed]) -> type[errors.RendezvousFailed]:
    torch_class = next(theirs for base, theirs in _TORCH if issubclass(ours, base))
    if issubclass(ours, torch_class):
        return ours
    return type(ours.__name__, (ours, torch_class), {"__module__": ours.__module__, "__doc__": ours.__doc__})


@contextlib.contextmanager
def store_errors_of_ours(limit: timedelta | None = None) -> Iterator[None]:
    """Surround a call of one of torch's stores: raises ``StoreLost``, ``StoreTimeout`` or ``StoreError`` for torch's.

    A call with a ``limit`` waits. TCPStore reports that it has passed by ``DistStoreError``, FileStore by an error that
    may mean anything: that is a time-out only if the limit has passed.
    """
    begun = time.monotonic()

    def is_over() -> bool:
        return limit is not None and time.monotonic() - begun >= 0.9 * limit.total_seconds()

    try:
        yield
    except DistNetworkError as error:
        raise errors.StoreLost(_text(error)) from error
    except DistStoreError as error:
        raise errors.StoreTimeout(_text(error)) from error
    except DistError as error:
        raise (errors.StoreTimeout if is_over() else errors.StoreError)(_text(error)) from error
    except RuntimeError as error:
        if type(error) is not RuntimeError or not is_over():
            raise
        raise errors.StoreTimeout(_text(error)) from error


@contextlib.contextmanager
def store_errors_of_torch() -> Iterator[None]:
    """Surround a call of one of our stores: raises torch's ``DistNetworkError`` or ``DistStoreError`` for ours."""
    try:
        yield
    except errors.StoreLost as error:
        raise DistNetworkError(str(error)) from error
    except errors.StoreError as error:
        raise DistStoreError(str(error)) from error


def _text(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
