"""Requests that have to come to an end, one way or the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def insist(request: Callable[[], T]) -> T:
    """Ask again when the service does not answer: what it may have done already changes nothing the second time.

    Ends by ``ConnectionLost`` at the latest when the session does.
    """
    while True:
        try:
            return request()
        except TimeoutError:
            continue
