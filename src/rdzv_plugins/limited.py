"""A time limit for calls that have none of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from rdzv_plugins.runtime import SYSTEM, Empty, Runtime

if TYPE_CHECKING:
    from queue import SimpleQueue

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T], name: str, runtime: Runtime = SYSTEM) -> T:
    """Return or raise what ``call`` does; ``TimeoutError`` if that takes longer, and then it goes on by itself.

    For what the system sets no limit on, such as the resolver or a file system. ``name`` is that of the thread.
    """
    answers: SimpleQueue[tuple[T | None, Exception | None]] = runtime.SimpleQueue()

    def run() -> None:
        try:
            answers.put((call(), None))
        except Exception as error:
            answers.put((None, error))

    runtime.Thread(target=run, name=name).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]
