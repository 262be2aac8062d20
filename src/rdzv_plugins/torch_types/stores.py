"""One of torch's stores as the contract specifies it: the same calls, with our errors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import Store

from rdzv_plugins.interfaces import RendezvousInfo, RoundInfo
from rdzv_plugins.store import Text
from rdzv_plugins.torch_types.errors import store_errors_of_ours


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
