"""Requests that have to come to an end, one way or the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rdzv_plugins.coordination import Session

T = TypeVar("T")

_LONGEST_S = 10.0


def patience(session: Session) -> float:
    """Seconds for one request: fewer than a session lives, so that a caller who insists learns of its end."""
    return min(session.ttl, _LONGEST_S)


def insist(request: Callable[[], T]) -> T:
    """Ask again when the service does not answer: what it may have done already changes nothing the second time.

    Ends by ``ConnectionLost`` at the latest when the session does.
    """
    while True:
        try:
            return request()
        except TimeoutError:
            continue
