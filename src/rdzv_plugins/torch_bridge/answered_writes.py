"""Writes that return when they are done, for workers behind a proxy.

In torch's format SET, APPEND, MULTI_SET and QUEUE_PUSH have no answer: a call returns when its bytes are sent. Behind a
proxy these have two hops to go, and another worker that hears of the call by other means may ask before they arrive. An
empty CHECK costs no request at the store, and a proxy answers it when the store has everything that the same client
wrote before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_ports: set[int] = set()
_WRITES = ("set", "append", "multi_set", "queue_push")


def answer_writes(port: int) -> None:
    """From now on, in this process, wait for what callers in Python write to the store whose client is at ``port``.

    torch's own callers in C++ are not affected: readers wait for what those set.
    """
    from torch.distributed import Store, TCPStore

    done = bool(_ports)
    _ports.add(port)
    if done:
        return

    def there(store: Store) -> bool:
        lowest = getattr(store, "_underlying_non_prefix_store", store)
        return isinstance(lowest, TCPStore) and lowest.port in _ports

    def answered(write: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(write)
        def written(store: Store, *arguments: Any, **named: Any) -> Any:
            result = write(store, *arguments, **named)
            if there(store):
                store.check([])
            return result

        return written

    for name in _WRITES:
        setattr(Store, name, answered(getattr(Store, name)))
