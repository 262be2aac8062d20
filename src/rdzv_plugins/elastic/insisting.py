"""Requests that have to complete, one way or the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rdzv_plugins.coordination import Session

T = TypeVar("T")

_LONGEST_S = 10.0


def patience(session: Session) -> float:
    """Seconds to allow for one request: less than a session's life, so that a caller who insists learns of its end."""
    return min(session.ttl, _LONGEST_S)


def insist(request: Callable[[], T]) -> T:
    """Repeat a request that the service does not answer: if it took effect already, repeating it changes nothing.

    Ends with ``ConnectionLost`` at the latest when the session ends.
    """
    while True:
        try:
            return request()
        except TimeoutError:
            continue
