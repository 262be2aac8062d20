"""The agents' store of a round as torch's agent uses it; it reports when the workers of this node have succeeded.

torch's agent tells only its exit barrier, and that is one key in this store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from torch.distributed import Store

from rdzv_plugins import store
from rdzv_plugins.rounds.exit_barrier import ARRIVALS, node_key
from rdzv_plugins.store import Text
from rdzv_plugins.torch_types.errors import store_errors_of_torch


class AgentStore(Store):  # type: ignore[misc]
    """Passes everything on to ``inner``, turning our errors into torch's; equally thread-safe.

    ``on_done`` is called before node ``rank`` enters the barrier.

    Its time-out is its own: torch's agent changes it for its barriers, and behind a prefix ``inner`` may be the control
    store, which other threads use meanwhile.
    """

    def __init__(self, inner: store.Store, rank: int, on_done: Callable[[], None]) -> None:
        super().__init__()
        self._inner, self._rank, self._on_done = inner, rank, on_done
        self._timeout: timedelta | None = None

    def add(self, key: str, amount: int) -> int:
        if key == ARRIVALS:
            self._on_done()
            self.set(node_key(self._rank), "")
        with store_errors_of_torch():
            return self._inner.add(key, amount)

    @property
    def timeout(self) -> timedelta:
        """The most time that a wait may take."""
        return self._inner.timeout if self._timeout is None else self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def set(self, key: str, value: Text) -> None:
        with store_errors_of_torch():
            self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        with store_errors_of_torch():
            self._wait_as_told([key])
            return self._inner.get(key)

    def compare_set(self, key: str, expected: Text, desired: Text) -> bytes:
        with store_errors_of_torch():
            return self._inner.compare_set(key, expected, desired)

    def check(self, keys: Sequence[str]) -> bool:
        with store_errors_of_torch():
            return self._inner.check(keys)

    def delete_key(self, key: str) -> bool:
        with store_errors_of_torch():
            return self._inner.delete_key(key)

    def num_keys(self) -> int:
        with store_errors_of_torch():
            return self._inner.num_keys()

    def multi_set(self, keys: Sequence[str], values: Sequence[Text]) -> None:
        with store_errors_of_torch():
            self._inner.multi_set(keys, values)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        with store_errors_of_torch():
            self._wait_as_told(keys)
            return self._inner.multi_get(keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        with store_errors_of_torch():
            self._inner.wait(keys, self.timeout if timeout is None else timeout)

    def _wait_as_told(self, keys: Sequence[str]) -> None:
        if self._timeout is not None:
            self._inner.wait(keys, self._timeout)
