"""The store of a round's agents, as engines, handlers and agents use it. Nothing here imports torch.

The methods are those of ``torch.distributed.Store`` that a launcher needs; the errors are ours. ``torch_types``
converts torch's stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

Text = str | bytes


class Store(Protocol):
    """Keys and values. Thread-safe.

    Every method raises ``StoreLost`` if the store can no longer be reached, and waits raise ``StoreTimeout`` when their
    time is over. Both are a ``StoreError``, as is any other refusal of the store.
    """

    @property
    def timeout(self) -> timedelta:
        """How long waits may take."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long waits that begin later may take."""

    def set(self, key: str, value: Text) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Wait until the key is there, and read it."""

    def compare_set(self, key: str, expected: Text, desired: Text) -> bytes:
        """Write ``desired`` if the value is ``expected``, or empty and there is none; returns the current value."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which starts at 0; returns the sum."""

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all these keys are there."""

    def delete_key(self, key: str) -> bool:
        """Delete a key; False if there was none."""

    def num_keys(self) -> int:
        """The number of keys, in the whole store."""

    def multi_set(self, keys: Sequence[str], values: Sequence[Text]) -> None:
        """Write several values."""

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait until all these keys are there, and read them."""

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all these keys are there; ``timeout`` None: as long as waits may take."""


class Prefixed:
    """A ``Store``: the keys of ``store`` that begin with ``prefix/``. The time-out is that of the whole store."""

    def __init__(self, prefix: str, store: Store) -> None:
        self._prefix, self._store = prefix, store

    @property
    def timeout(self) -> timedelta:
        return self._store.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)

    def set(self, key: str, value: Text) -> None:
        self._store.set(self._key(key), value)

    def get(self, key: str) -> bytes:
        return self._store.get(self._key(key))

    def compare_set(self, key: str, expected: Text, desired: Text) -> bytes:
        return self._store.compare_set(self._key(key), expected, desired)

    def add(self, key: str, amount: int) -> int:
        return self._store.add(self._key(key), amount)

    def check(self, keys: Sequence[str]) -> bool:
        return self._store.check(self._keys(keys))

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(self._key(key))

    def num_keys(self) -> int:
        return self._store.num_keys()

    def multi_set(self, keys: Sequence[str], values: Sequence[Text]) -> None:
        self._store.multi_set(self._keys(keys), values)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._store.multi_get(self._keys(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._store.wait(self._keys(keys), timeout)

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _keys(self, keys: Sequence[str]) -> list[str]:
        return [self._key(key) for key in keys]
