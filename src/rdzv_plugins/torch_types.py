"""The border with torch: our errors and stores as torch's, and torch's as ours. All translation happens here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistError, DistNetworkError, DistStoreError, Store
from torch.distributed.elastic.rendezvous import api

from rdzv_plugins import errors
from rdzv_plugins.interfaces import RendezvousInfo, RoundInfo
from rdzv_plugins.store import Text

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
        raise errors.StoreLost(first_line(error)) from error
    except DistStoreError as error:
        raise errors.StoreTimeout(first_line(error)) from error
    except DistError as error:
        raise (errors.StoreTimeout if is_over() else errors.StoreError)(first_line(error)) from error
    except RuntimeError as error:
        if type(error) is not RuntimeError or not is_over():
            raise
        raise errors.StoreTimeout(first_line(error)) from error


@contextlib.contextmanager
def store_errors_of_torch() -> Iterator[None]:
    """Surround a call of one of our stores: raises torch's ``DistNetworkError`` or ``DistStoreError`` for ours."""
    try:
        yield
    except errors.StoreLost as error:
        raise DistNetworkError(str(error)) from error
    except errors.StoreError as error:
        raise DistStoreError(str(error)) from error


def first_line(error: BaseException) -> str:
    """What the error says, without what torch adds below; its class if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class OfTorch:
    """A ``store.Store``. Passes everything on to ``inner``, one of torch's stores, and is equally thread-safe."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def timeout(self) -> timedelta:
        limit: timedelta = self.inner.timeout
        return limit

    def set_timeout(self, timeout: timedelta) -> None:
        self.inner.set_timeout(timeout)

    def set(self, key: str, value: Text) -> None:
        with store_errors_of_ours():
            self.inner.set(key, value)

    def get(self, key: str) -> bytes:
        with store_errors_of_ours(self.inner.timeout):
            return bytes(self.inner.get(key))

    def compare_set(self, key: str, expected: Text, desired: Text) -> bytes:
        with store_errors_of_ours():
            return bytes(self.inner.compare_set(key, expected, desired))

    def add(self, key: str, amount: int) -> int:
        with store_errors_of_ours():
            return int(self.inner.add(key, amount))

    def check(self, keys: Sequence[str]) -> bool:
        with store_errors_of_ours():
            return bool(self.inner.check(list(keys)))

    def delete_key(self, key: str) -> bool:
        with store_errors_of_ours():
            return bool(self.inner.delete_key(key))

    def num_keys(self) -> int:
        with store_errors_of_ours():
            return int(self.inner.num_keys())

    def multi_set(self, keys: Sequence[str], values: Sequence[Text]) -> None:
        with store_errors_of_ours():
            self.inner.multi_set(list(keys), list(values))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        with store_errors_of_ours(self.inner.timeout):
            return [bytes(value) for value in self.inner.multi_get(list(keys))]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        with store_errors_of_ours(self.inner.timeout if timeout is None else timeout):
            if timeout is None:
                self.inner.wait(list(keys))
            else:
                self.inner.wait(list(keys), timeout)


def in_contract(info: RendezvousInfo) -> RendezvousInfo:
    """A round whose store is one of torch's, with that store as the contract has it; any other round unchanged."""
    if not isinstance(info.store, Store):
        return info
    where: Any = info.bootstrap_store_info
    return RoundInfo(OfTorch(info.store), info.rank, info.world_size, where)
